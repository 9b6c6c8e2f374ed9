"""A router that speaks the real gRPC contract on loopback and places on the first ready worker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from ridgeline_contracts.proto import router_pb2, router_pb2_grpc


class FakeRouter(router_pb2_grpc.RouterServicer):
    """A router that places on the first ready worker that is not excluded."""

    def __init__(self) -> None:
        self.workers: dict[str, router_pb2.WorkerInfo] = {}
        self.routes: list[router_pb2.RouteRequest] = []
        self.releases: list[router_pb2.ReleaseRequest] = []
        self.released = asyncio.Event()
        self.routed = asyncio.Event()
        self.refusal: router_pb2.Refusal | None = None
        self.estimates = router_pb2.Estimates(ttft_ms=7.0)
        self.hold: asyncio.Event | None = None
        """Route waits for it."""
        self.port = 0
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        router_pb2_grpc.add_RouterServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def tell(self, *infos: router_pb2.WorkerInfo) -> None:
        self.workers = {info.worker_id: info for info in infos}
        self._changed.set()
        self._changed = asyncio.Event()

    async def Route(self, request: Any, context: Any) -> router_pb2.RouteReply:
        self.routes.append(request)
        self.routed.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.refusal is not None:
            return router_pb2.RouteReply(refusal=self.refusal)
        for info in self.workers.values():
            ready = info.state == router_pb2.WORKER_STATE_READY
            if ready and info.worker_id not in request.pins.excluded_worker_ids:
                placement = router_pb2.Placement(
                    decode=router_pb2.WorkerRef(
                        worker_id=info.worker_id, worker_incarnation=info.worker_incarnation
                    ),
                    reason="first",
                    reservation_id=f"reservation-{len(self.routes)}",
                    estimates=self.estimates,
                )
                return router_pb2.RouteReply(placement=placement)
        refusal = router_pb2.Refusal(code="unavailable", message="no worker is ready", retry_after_ms=50)
        return router_pb2.RouteReply(refusal=refusal)

    async def Release(self, request: Any, context: Any) -> router_pb2.ReleaseReply:
        self.releases.append(request)
        self.released.set()
        return router_pb2.ReleaseReply()

    async def Workers(self, request: Any, context: Any) -> AsyncIterator[router_pb2.WorkerSet]:
        while True:
            changed = self._changed
            yield router_pb2.WorkerSet(workers=self.workers.values())
            await changed.wait()
