"""The router, as the gateway asks it."""

import asyncio
import logging
from collections.abc import AsyncIterable, Callable

import grpc
from ridgeline_contracts.errors import PeerError, error_from_code
from ridgeline_contracts.proto import router_pb2 as pb
from ridgeline_contracts.proto.router_pb2_grpc import RouterStub

from ridgeline_gateway.background import Background
from ridgeline_gateway.settings import TimingSettings

_log = logging.getLogger(__name__)
_RETRY_MS = 1000


class RouterClient:
    """One channel to a router. Close it in the end."""

    def __init__(self, address: str, *, timing: TimingSettings, background: Background) -> None:
        self._address = address
        self._timing = timing
        self._background = background
        self._channel = grpc.aio.insecure_channel(address, options=_channel_options(timing))
        self._stub = RouterStub(self._channel)
        self._watching = False

    @property
    def reachable(self) -> bool:
        """Whether the stream of workers stands."""
        return self._watching

    async def route(self, request: pb.RouteRequest) -> pb.Placement:
        """Where a request should run. Raises what the router refuses it with, PeerError when it cannot be asked.

        A caller that is cancelled meanwhile leaves no reservation behind.
        """
        asking = self._background.start(self._ask(request))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._release_unwanted)
            raise

    def release(self, reservation_id: str, outcome: pb.Outcome.ValueType) -> None:
        """Ends a reservation, in the background. A router that cannot be reached drops it by itself in time."""
        self._background.start(self._release(reservation_id, outcome))

    async def _ask(self, request: pb.RouteRequest) -> pb.Placement:
        try:
            reply: pb.RouteReply = await self._stub.Route(
                request, timeout=self._timing.route_timeout_ms / 1000
            )
        except grpc.aio.AioRpcError as error:
            raise PeerError(
                f"the router at {self._address} does not answer ({error.code().name})",
                retry_after_ms=_RETRY_MS,
            ) from error
        if reply.HasField("placement"):
            return reply.placement
        refusal = reply.refusal
        wait_ms = refusal.retry_after_ms if refusal.HasField("retry_after_ms") else None
        raise error_from_code(refusal.code, refusal.message, retry_after_ms=wait_ms)

    def _release_unwanted(self, asking: asyncio.Task[pb.Placement]) -> None:
        if not asking.cancelled() and asking.exception() is None:
            self.release(asking.result().reservation_id, pb.OUTCOME_CANCELLED)

    async def _release(self, reservation_id: str, outcome: pb.Outcome.ValueType) -> None:
        request = pb.ReleaseRequest(reservation_id=reservation_id, outcome=outcome)
        try:
            await self._stub.Release(request, timeout=self._timing.route_timeout_ms / 1000)
        except grpc.aio.AioRpcError as error:
            _log.warning("router.release_failed reservation=%s code=%s", reservation_id, error.code().name)

    async def watch(self, on_workers: Callable[[pb.WorkerSet], None]) -> None:
        """Hands on every set of workers, for ever; tries again when the stream ends. Ends by cancellation."""
        pause_ms = self._timing.reconnect_first_ms
        while True:
            try:
                call: AsyncIterable[pb.WorkerSet] = self._stub.Workers(pb.WorkersRequest())
                async for workers in call:
                    if not self._watching:
                        _log.info("router.connected address=%s", self._address)
                    self._watching = True
                    pause_ms = self._timing.reconnect_first_ms
                    on_workers(workers)
            except grpc.aio.AioRpcError as error:
                if self._watching:
                    _log.warning("router.lost address=%s code=%s", self._address, error.code().name)
            finally:
                self._watching = False
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(pause_ms * 2, self._timing.reconnect_last_ms)

    async def close(self) -> None:
        await self._channel.close(None)


def _channel_options(timing: TimingSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.keepalive_time_ms", timing.keepalive_ms),
        ("grpc.keepalive_timeout_ms", timing.keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A router that restarts is found again quickly.
        ("grpc.initial_reconnect_backoff_ms", timing.reconnect_first_ms),
        ("grpc.max_reconnect_backoff_ms", timing.reconnect_last_ms),
    ]
