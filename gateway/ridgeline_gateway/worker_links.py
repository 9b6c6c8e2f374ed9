"""A link to each worker that the router tells of."""

import asyncio
from collections.abc import Sequence

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import PeerError, WorkerLost
from ridgeline_contracts.ids import WorkerId
from ridgeline_contracts.proto import router_pb2, worker_pb2

from ridgeline_gateway.settings import Identity, TimingSettings
from ridgeline_gateway.worker_link import WorkerLink

_REACHABLE = (router_pb2.WORKER_STATE_READY, router_pb2.WORKER_STATE_DRAINING)


class WorkerLinks:
    """Opens and closes links as workers come and go."""

    def __init__(self, *, identity: Identity, timing: TimingSettings) -> None:
        self._identity = identity
        self._timing = timing
        self._links: dict[WorkerId, WorkerLink] = {}
        self._tasks: dict[WorkerId, asyncio.Task[None]] = {}
        self._incarnations: dict[WorkerId, str] = {}
        self._changed = asyncio.Event()

    def update(self, workers: Sequence[router_pb2.WorkerInfo]) -> None:
        """Follows the router. A worker that it cannot reach keeps its link: the gateway's own may still be good."""
        told = {WorkerId(info.worker_id): info for info in workers}
        for worker, link in list(self._links.items()):
            if worker not in told or told[worker].address != link.address:
                self._close(worker)
        for worker, info in told.items():
            if info.state in _REACHABLE and worker not in self._links:
                self._open(worker, info.address)
            elif info.state in _REACHABLE and self._incarnations.get(worker) != info.worker_incarnation:
                self._links[worker].hurry()
            self._incarnations[worker] = info.worker_incarnation

    async def connected(self, worker: WorkerId, *, wait_ms: float) -> WorkerLink:
        """The link to a worker, once it has a session. Raises WorkerLost after `wait_ms`."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while True:
                    link = self._links.get(worker)
                    if link is not None and link.hello is not None:
                        return link
                    await self._changed.wait()
        except TimeoutError as error:
            raise WorkerLost(
                f"no session with worker {worker} within {wait_ms:g} ms", retry_after_ms=1000
            ) from error

    def serving(self, variant: worker_pb2.Variant) -> list[WorkerLink]:
        """Links with a session whose worker serves a variant."""
        return [
            link for link in self._links.values() if link.hello is not None and variant in link.hello.variants
        ]

    def capabilities(self, variant: worker_pb2.Variant) -> Capabilities:
        """Of the first worker that serves the variant: a pool's workers are alike. Raises PeerError without one."""
        for link in self.serving(variant):
            if link.capabilities is not None:
                return link.capabilities
        raise PeerError(f"no worker serves model {variant.model!r} now: retry soon", retry_after_ms=1000)

    async def change(self) -> None:
        """Waits until a link gains or loses its session."""
        await self._changed.wait()

    def open_requests(self) -> int:
        return sum(link.open_requests for link in self._links.values())

    @property
    def connected_workers(self) -> int:
        return sum(link.hello is not None for link in self._links.values())

    async def close(self) -> None:
        """Ends every session."""
        tasks = list(self._tasks.values())
        for worker in list(self._links):
            self._close(worker)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, worker: WorkerId, address: str) -> None:
        link = WorkerLink(worker, address, identity=self._identity, timing=self._timing, on_change=self._ring)
        self._links[worker] = link
        self._tasks[worker] = asyncio.create_task(link.run(), name=f"worker-link-{worker}")

    def _close(self, worker: WorkerId) -> None:
        del self._links[worker]
        self._tasks.pop(worker).cancel()
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
