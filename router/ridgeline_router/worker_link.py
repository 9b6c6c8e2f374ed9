"""The router's ear at one worker: its load stream, opened again whenever it breaks."""

import asyncio
import logging
from dataclasses import dataclass

import grpc
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.proto import worker_pb2
from ridgeline_contracts.proto.worker_pb2_grpc import WorkerStub

from ridgeline_router.discovery import WorkerAddress
from ridgeline_router.routing import Routing
from ridgeline_router.wire_forms import facts_from_report

_log = logging.getLogger(__name__)
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # The pauses are this class's own.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """`lost_after_ms` without a report, and the worker counts as lost. Longer than a few intervals."""

    interval_ms: int = 500
    lost_after_ms: float = 3000.0
    first_pause_ms: float = 50.0
    longest_pause_ms: float = 2000.0


class WorkerLink:
    """`run` listens for ever; it ends by cancellation."""

    def __init__(self, where: WorkerAddress, routing: Routing, *, timing: LinkTiming, clock: Clock) -> None:
        self._where = where
        self._routing = routing
        self._timing = timing
        self._clock = clock

    async def run(self) -> None:
        pause_ms = self._timing.first_pause_ms
        while True:
            heard, reason = await self._listen_once()
            self._routing.worker_lost(self._where.worker_id, self._where.address, reason)
            pause_ms = (
                self._timing.first_pause_ms if heard else min(pause_ms * 2, self._timing.longest_pause_ms)
            )
            await asyncio.sleep(pause_ms / 1000)

    async def _listen_once(self) -> tuple[bool, str]:
        """One stream until it ends. Whether there was a report, and why it ended."""
        heard = False
        async with grpc.aio.insecure_channel(self._where.address, options=_CHANNEL_OPTIONS) as channel:
            call = WorkerStub(channel).Load(worker_pb2.LoadRequest(interval_ms=self._timing.interval_ms))
            try:
                while True:
                    async with asyncio.timeout(self._timing.lost_after_ms / 1000):
                        report = await call.read()
                    if not isinstance(report, worker_pb2.LoadReport):
                        return heard, "the worker ended the stream"
                    heard = True
                    now_ms = self._clock.monotonic_ms()
                    self._routing.worker_reported(facts_from_report(self._where, report, now_ms=now_ms))
            except TimeoutError:
                return heard, f"no report within {self._timing.lost_after_ms:.0f} ms"
            except grpc.aio.AioRpcError as error:
                return heard, f"{error.code().name}: {error.details()}"
            finally:
                call.cancel()


class WorkerLinks:
    """One link for each worker that the discovery tells."""

    def __init__(self, routing: Routing, *, timing: LinkTiming, clock: Clock) -> None:
        self._routing = routing
        self._timing = timing
        self._clock = clock
        self._tasks: dict[WorkerAddress, asyncio.Task[None]] = {}

    def update(self, workers: tuple[WorkerAddress, ...]) -> None:
        self._routing.registry.discovered(workers)
        for where in [where for where in self._tasks if where not in workers]:
            self._tasks.pop(where).cancel()
        for where in workers:
            if where not in self._tasks:
                link = WorkerLink(where, self._routing, timing=self._timing, clock=self._clock)
                self._tasks[where] = asyncio.create_task(link.run(), name=f"worker-{where.worker_id}")

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
