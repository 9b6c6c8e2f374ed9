"""A worker's whole life: listen, start the core, serve, drain, end. Returns the process's exit code."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import grpc
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import SettingsError, WorkerLost
from ridgeline_contracts.exits import USAGE
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_contracts.proto import worker_pb2_grpc
from ridgeline_process.status_page import StatusPage

from ridgeline_worker.front import Front
from ridgeline_worker.metrics import WorkerMetrics
from ridgeline_worker.restarts import GiveUp
from ridgeline_worker.served import Served
from ridgeline_worker.service import WorkerService
from ridgeline_worker.settings import ServingSettings, WorkerSettings
from ridgeline_worker.supervisor import CoreSupervisor

_log = logging.getLogger(__name__)
_CLOSE_GRACE_S = 1.0
SERVER_OPTIONS = (
    # Two workers on one port would silently share its connections.
    ("grpc.so_reuseport", 0),
    # A gateway pings while a long prefill gives no rows; that is no misuse.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # And a gateway whose machine is gone is noticed within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A prompt of a million tokens is 4 MB.
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the worker listens, once it does."""

    port: int
    metrics_port: int


class WorkerApplication:
    """`run` serves until `stop` is called or the core cannot go on."""

    def __init__(
        self,
        settings: WorkerSettings,
        served: Served,
        *,
        folder: ModelFolder | None,
        environment: Mapping[str, str],
        clock: Clock,
        product_version: str,
        new_incarnation: Callable[[], Incarnation],
    ) -> None:
        self._settings = settings
        metrics = WorkerMetrics()
        self.front = Front(
            settings,
            served,
            incarnation=new_incarnation(),
            product_version=product_version,
            clock=clock,
            metrics=metrics,
        )
        self.supervisor = CoreSupervisor(
            settings,
            self.front,
            folder=folder,
            environment=environment,
            clock=clock,
            new_incarnation=new_incarnation,
        )
        self.front.connect_core(self.supervisor.send)
        self.listening: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        self._status_page = StatusPage(metrics.registry, self._not_ready_because)
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    def stop(self) -> None:
        """Drains, then ends; a second call ends at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    async def run(self) -> int:
        """Raises SettingsError for a port that is taken, and for what the engine cannot be started with."""
        serving = self._settings.serving
        server = grpc.aio.server(options=SERVER_OPTIONS)
        worker_pb2_grpc.add_WorkerServicer_to_server(WorkerService(self.front), server)
        port = bind(server, serving)
        metrics_port = await self._status_page.start(serving.host, serving.metrics_port)
        await server.start()
        self.listening.set_result(Addresses(port, metrics_port))
        _log.info(
            "worker.listening address=%s:%d metrics_port=%d worker_id=%s pid=%d",
            *(serving.host, port, metrics_port, serving.worker_id, os.getpid()),
        )
        try:
            return await self._serve(server)
        finally:
            await self._status_page.stop()

    async def _serve(self, server: grpc.aio.Server) -> int:
        cores = asyncio.create_task(self.supervisor.run())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((cores, stop), return_when=asyncio.FIRST_COMPLETED)
            verdict = cores.result() if cores.done() else None
            if verdict is None:
                await self._drain_or_stop_now()
        finally:
            for task in (cores, stop):
                task.cancel()
            await asyncio.gather(cores, stop, return_exceptions=True)
            await self._close(server)
        return self._exit_code(verdict)

    async def _drain_or_stop_now(self) -> None:
        limit_ms = self._settings.limits.drain_max_ms
        _log.info("worker.draining limit_ms=%.0f", limit_ms)
        drain = asyncio.create_task(self.front.drain(limit_ms))
        at_once = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait((drain, at_once), return_when=asyncio.FIRST_COMPLETED)
        for task in (drain, at_once):
            task.cancel()
        await asyncio.gather(drain, at_once, return_exceptions=True)

    async def _close(self, server: grpc.aio.Server) -> None:
        await self.supervisor.stop()
        self.front.fail_all(WorkerLost("the worker was stopped before this request had ended"))
        self.front.close()
        await server.stop(_CLOSE_GRACE_S)

    def _not_ready_because(self) -> str | None:
        if self.front.is_draining:
            return "draining"
        return None if self.front.is_ready else "the core is starting"

    @staticmethod
    def _exit_code(verdict: GiveUp | None) -> int:
        if verdict is None:
            _log.info("worker.stopped")
            return 0
        if verdict.exit_code == USAGE:
            raise SettingsError(verdict.reason)
        _log.error("worker.giving_up exit_code=%d reason=%r", verdict.exit_code, verdict.reason)
        return verdict.exit_code


def bind(server: grpc.aio.Server, serving: ServingSettings) -> int:
    """Takes the port and returns it. Raises SettingsError when it is in use.

    It tries with a socket first: gRPC tells no cause, and writes lines of its own to stderr.
    """
    host, port = serving.host, serving.port
    is_v6 = ":" in host
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if is_v6 else socket.AF_INET):
            pass
        return server.add_insecure_port(f"[{host}]:{port}" if is_v6 else f"{host}:{port}")
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"cannot listen on {host}:{port} ({error}): give another --port") from error


@contextlib.contextmanager
def stop_on_signals(application: WorkerApplication) -> Iterator[None]:
    """SIGTERM and SIGINT both drain; the second one ends at once."""
    loop = asyncio.get_running_loop()
    for caught in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(caught, application.stop)
    try:
        yield
    finally:
        for caught in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(caught)
