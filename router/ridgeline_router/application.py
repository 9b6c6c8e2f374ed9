"""A router's whole life: listen, follow the discovery, answer, end. Returns the process's exit code."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import ReservationId
from ridgeline_contracts.proto import router_pb2_grpc
from ridgeline_process.status_page import StatusPage

from ridgeline_router.discovery import Discovery
from ridgeline_router.history import DecisionHistory
from ridgeline_router.metrics import RouterMetrics
from ridgeline_router.registry import WorkerRegistry
from ridgeline_router.reservations import ReservationBook
from ridgeline_router.routing import Routing
from ridgeline_router.service import RouterService
from ridgeline_router.settings import RouterSettings
from ridgeline_router.worker_link import WorkerLinks

_log = logging.getLogger(__name__)
_CLOSE_GRACE_S = 0.5
_SERVER_OPTIONS = (
    # Two routers on one port would silently share its connections.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # The block hashes of a prompt of a million tokens are 1 MB.
    ("grpc.max_receive_message_length", 16 << 20),
)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the router listens, once it does."""

    port: int
    metrics_port: int


class RouterApplication:
    """`run` serves until `stop` is called."""

    def __init__(
        self,
        settings: RouterSettings,
        discovery: Discovery,
        *,
        clock: Clock,
        new_reservation_id: Callable[[], ReservationId],
    ) -> None:
        metrics = RouterMetrics()
        self._settings = settings
        self._discovery = discovery
        self.routing = Routing(
            registry=WorkerRegistry(),
            book=ReservationBook(new_id=new_reservation_id, lease_ms=settings.lease_ms),
            history=DecisionHistory(most_requests=settings.history_requests),
            metrics=metrics,
            policy=settings.policy,
            clock=clock,
        )
        self._links = WorkerLinks(self.routing, timing=settings.timing, clock=clock)
        self.listening: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
        self._status_page = StatusPage(metrics.registry, self._not_ready_because)
        self._discovered = False
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> int:
        """Raises SettingsError for a port that is taken."""
        settings = self._settings
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        router_pb2_grpc.add_RouterServicer_to_server(RouterService(self.routing), server)
        port = _bind(server, settings.host, settings.port)
        metrics_port = await self._status_page.start(settings.host, settings.metrics_port)
        await server.start()
        self.listening.set_result(Addresses(port, metrics_port))
        _log.info(
            "router.listening address=%s:%d metrics_port=%d pid=%d",
            settings.host,
            port,
            metrics_port,
            os.getpid(),
        )
        try:
            await self._until_stopped()
        finally:
            await self._links.close()
            self.routing.registry.close()
            await server.stop(_CLOSE_GRACE_S)
            await self._status_page.stop()
        _log.info("router.stopped")
        return 0

    async def _until_stopped(self) -> None:
        follow = asyncio.create_task(self._follow())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((follow, stop), return_when=asyncio.FIRST_COMPLETED)
        if follow.done():
            follow.result()
        for task in (follow, stop):
            task.cancel()
        await asyncio.gather(follow, stop, return_exceptions=True)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._discovery.follow()) as sets:
            async for workers in sets:
                self._links.update(workers)
                self._discovered = True

    def _not_ready_because(self) -> str | None:
        return None if self._discovered else "the workers are not discovered yet"


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    """Tries with a socket first: gRPC tells no cause, and writes lines of its own to stderr."""
    try:
        is_v6 = ":" in host
        with socket.create_server((host, port), family=socket.AF_INET6 if is_v6 else socket.AF_INET):
            pass
        return server.add_insecure_port(f"[{host}]:{port}" if is_v6 else f"{host}:{port}")
    except (OSError, RuntimeError) as error:
        raise SettingsError(f"cannot listen on {host}:{port} ({error}): give another --port") from error


@contextlib.contextmanager
def stop_on_signals(application: RouterApplication) -> Iterator[None]:
    """SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for caught in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(caught, application.stop)
    try:
        yield
    finally:
        for caught in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(caught)
