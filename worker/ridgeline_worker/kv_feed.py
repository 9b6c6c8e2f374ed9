"""The prefix cache's changes, kept so that many listeners can follow, and a mirror of it for newcomers.

A listener holds only its own position. One that has fallen out of the ring gets a snapshot, so a slow
listener costs neither memory nor time, and a gap is always visible as one.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ridgeline_contracts.ids import BlockHash, Incarnation
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_engine.kv_events import KVChange, KVCleared, KVEvicted, KVStored

from ridgeline_worker.bell import Bell

_RING_EVENTS = 4096
_SNAPSHOT_BLOCKS = 1024
"""Blocks in one snapshot message, about 50 KB."""


@dataclass(frozen=True, slots=True)
class _Position:
    incarnation: str
    sequence: int


class KvFeed:
    """Fed by the front with what the core reports."""

    def __init__(self, *, ring_events: int = _RING_EVENTS) -> None:
        self._incarnation = Incarnation("")
        self._sequence = 0
        self._ring: deque[pb.KvEvent] = deque(maxlen=ring_events)
        self._parents: dict[tuple[int, BlockHash], BlockHash] = {}
        self._bell = Bell()
        self._is_closed = False

    @property
    def position(self) -> tuple[int, str]:
        """Sequence number of the newest event, and the core's incarnation."""
        return self._sequence, self._incarnation

    @property
    def cached_blocks(self) -> int:
        return len(self._parents)

    def restart(self, incarnation: Incarnation) -> None:
        """A new core, whose cache is empty. Its numbers begin at 1, with the event that says `cleared`."""
        self._incarnation = incarnation
        self._sequence = 0
        self._ring.clear()
        self.apply((KVCleared(),))

    def apply(self, changes: Iterable[KVChange]) -> None:
        rung = False
        for change in changes:
            self._sequence += 1
            self._ring.append(self._event(change))
            rung = True
        if rung:
            self._bell.ring()

    def close(self) -> None:
        """Ends every `follow`."""
        self._is_closed = True
        self._bell.ring()

    async def follow(self, request: pb.KvEventsRequest) -> AsyncGenerator[pb.KvEvent]:
        """Events after the request's position, until `close`. A snapshot stands for those that are not
        held."""
        position = _Position(request.core_incarnation, request.after_sequence)
        while not self._is_closed:
            seen = self._bell.version
            events = self._after(position)
            if events is None:
                events = list(self._snapshot())
            for event in events:
                yield event
            if events:
                position = _Position(events[-1].core_incarnation, events[-1].sequence)
            await self._bell.after(seen)

    def _after(self, position: _Position) -> list[pb.KvEvent] | None:
        """Events later than the position, or None when they are not all held."""
        if position.incarnation != self._incarnation or not 0 < position.sequence <= self._sequence:
            return None
        missing = self._sequence - position.sequence
        if missing > len(self._ring):
            return None
        return list(islice(self._ring, len(self._ring) - missing, None))

    def _snapshot(self) -> Iterator[pb.KvEvent]:
        chains = list(self._chains())
        for start in range(0, max(1, len(chains)), _SNAPSHOT_BLOCKS):
            snapshot = pb.KvSnapshot(
                stored=chains[start : start + _SNAPSHOT_BLOCKS], last=start + _SNAPSHOT_BLOCKS >= len(chains)
            )
            yield pb.KvEvent(sequence=self._sequence, core_incarnation=self._incarnation, snapshot=snapshot)

    def _chains(self) -> Iterator[pb.KvStored]:
        for (group, block), parent in self._parents.items():
            yield pb.KvStored(parent_hash=parent, block_hashes=[block], group=group)

    def _event(self, change: KVChange) -> pb.KvEvent:
        event = pb.KvEvent(sequence=self._sequence, core_incarnation=self._incarnation)
        match change:
            case KVStored():
                parent = change.parent_hash
                for block in change.block_hashes:
                    self._parents[(change.group, block)] = parent
                    parent = block
                event.stored.CopyFrom(
                    pb.KvStored(
                        parent_hash=change.parent_hash, block_hashes=change.block_hashes, group=change.group
                    )
                )
            case KVEvicted():
                for block in change.block_hashes:
                    self._parents.pop((change.group, block), None)
                event.evicted.CopyFrom(pb.KvEvicted(block_hashes=change.block_hashes, group=change.group))
            case KVCleared():
                self._parents.clear()
                event.cleared.CopyFrom(pb.KvCleared())
        return event
