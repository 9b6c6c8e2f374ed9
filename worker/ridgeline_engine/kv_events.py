"""What changed in the prefix cache, numbered from 1 without gaps; a reader that lost some asks for a
snapshot.

These map one to one onto the worker contract's KvEvent. Named tuples: they travel from core to front in steps, and
pickle in a quarter of a dataclass's time.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias

from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import GroupId


class KVStored(NamedTuple):
    """Blocks that follow each other and `parent_hash` (a scope's root for a prompt's first block)."""

    parent_hash: BlockHash
    block_hashes: tuple[BlockHash, ...]
    group: GroupId


class KVEvicted(NamedTuple):
    block_hashes: tuple[BlockHash, ...]
    group: GroupId


@dataclass(frozen=True, slots=True)
class KVCleared:
    """Nothing is cached any more, in any group."""


KVChange: TypeAlias = KVStored | KVEvicted | KVCleared


class KVEvent(NamedTuple):
    sequence: int
    change: KVChange


@dataclass(frozen=True, slots=True)
class KVSnapshot:
    """All that is cached after event `sequence`. Replaces what the reader knew."""

    sequence: int
    stored: tuple[KVStored, ...]


class KVEventLog:
    """The last `capacity` events. `snapshot` gives what is stored now."""

    def __init__(self, capacity: int, *, snapshot: Callable[[], tuple[KVStored, ...]]) -> None:
        self._events: deque[KVEvent] = deque(maxlen=capacity)
        self._sequence = 0
        self._snapshot = snapshot

    @property
    def sequence(self) -> int:
        """Of the newest event; 0 before the first."""
        return self._sequence

    def add(self, change: KVChange) -> None:
        self._sequence += 1
        self._events.append(KVEvent(self._sequence, change))

    def after(self, sequence: int) -> tuple[KVEvent, ...] | KVSnapshot:
        """Events after `sequence`, oldest first; a snapshot where `sequence` is 0, gone or not of this
        log."""
        missing = self._sequence - sequence
        if sequence <= 0 or missing < 0 or missing > len(self._events):
            return KVSnapshot(self._sequence, self._snapshot())
        # From the right, where the new ones are: from the left it would walk over thousands.
        return tuple(islice(reversed(self._events), missing))[::-1]
