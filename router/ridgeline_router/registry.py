"""The workers that exist, and what each last said."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace

from ridgeline_contracts.ids import WorkerId

from ridgeline_router.discovery import WorkerAddress
from ridgeline_router.facts import WorkerFacts, WorkerLoad, WorkerState


class WorkerRegistry:
    """Holds one WorkerFacts a worker. `changes` follows what gateways must know: all but the load."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, WorkerFacts] = {}
        self._version = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def all(self) -> tuple[WorkerFacts, ...]:
        """Sorted by id."""
        return tuple(self._workers[key] for key in sorted(self._workers))

    def get(self, worker_id: WorkerId) -> WorkerFacts | None:
        return self._workers.get(worker_id)

    def discovered(self, addresses: Iterable[WorkerAddress]) -> None:
        """The whole set, by id and address. A worker at a new address begins anew."""
        told = {each.worker_id: each.address for each in addresses}
        kept = {key: facts for key, facts in self._workers.items() if told.get(key) == facts.address}
        fresh = {key: WorkerFacts(key, address) for key, address in told.items() if key not in kept}
        if fresh or len(kept) != len(self._workers):
            self._workers = kept | fresh
            self._ring()

    def reported(self, facts: WorkerFacts) -> None:
        """A worker's own word. One that is not known (any more) is ignored."""
        before = self._workers.get(facts.worker_id)
        if before is None or before.address != facts.address:
            return
        self._workers[facts.worker_id] = facts
        if _for_gateways(before) != _for_gateways(facts):
            self._ring()

    def lost(self, worker_id: WorkerId, address: str) -> bool:
        """Nothing is heard of it. It keeps what it served, so that its model is known.
        Whether that is news."""
        before = self._workers.get(worker_id)
        if before is None or before.address != address or before.reported_at_ms is None:
            return False
        if before.state is WorkerState.LOST:
            return False
        self._workers[worker_id] = replace(before, state=WorkerState.LOST, load=WorkerLoad())
        self._ring()
        return True

    async def changes(self) -> AsyncGenerator[tuple[WorkerFacts, ...]]:
        """The whole set now and after each change, until `close`. Changes that come together are told once."""
        while not self._is_closed:
            seen = self._version
            yield self.all()
            while self._version == seen:
                await self._changed.wait()

    def close(self) -> None:
        """Ends every `changes`."""
        self._is_closed = True
        self._ring()

    def _ring(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _for_gateways(facts: WorkerFacts) -> tuple[object, ...]:
    return (
        facts.state,
        facts.incarnation,
        facts.pool,
        facts.role,
        facts.variants,
        facts.tokenizer_files,
    )
