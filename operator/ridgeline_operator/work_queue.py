"""The keyed queue: what changed is looked at once, never twice at a time, and again after a failure."""

import asyncio
from typing import NamedTuple

from ridgeline_contracts.clock import Clock

FIRST_RETRY_MS = 500.0
LONGEST_RETRY_MS = 60_000.0


MODEL_STATUS = "ModelStatus"
"""A Model of which a pool has changed: its status is told anew, its pools are not woken."""


class Key(NamedTuple):
    """One object of ours, by its kind or MODEL_STATUS."""

    kind: str
    namespace: str
    name: str


def retry_ms(failures: int) -> float:
    """After so many failures in a row: doubling from 0.5 s, at most a minute."""
    return min(LONGEST_RETRY_MS, FIRST_RETRY_MS * 2.0 ** min(16, failures - 1))


class WorkQueue:
    """A key that is added while it waits waits once; one that is added while it is worked on comes again after."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Key, float] = {}
        self._working: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, *, after_ms: float = 0.0) -> None:
        """The earlier of two times counts."""
        due_ms = self._clock.monotonic_ms() + after_ms
        if key in self._waiting and self._waiting[key] <= due_ms:
            return
        self._waiting[key] = due_ms
        self._changed.set()

    async def take(self) -> Key:
        """The next key that is due and not worked on; `done` must follow."""
        while True:
            self._changed.clear()
            free = [(due_ms, key) for key, due_ms in self._waiting.items() if key not in self._working]
            wait_ms = min(free)[0] - self._clock.monotonic_ms() if free else None
            if wait_ms is not None and wait_ms <= 0:
                _, key = min(free)
                del self._waiting[key]
                self._working.add(key)
                return key
            try:
                await asyncio.wait_for(self._changed.wait(), None if wait_ms is None else wait_ms / 1000)
            except TimeoutError:
                continue

    def done(self, key: Key, *, failed: bool) -> None:
        """A failure brings the key back by `retry_ms`."""
        self._working.discard(key)
        if failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add(key, after_ms=retry_ms(self._failures[key]))
        else:
            self._failures.pop(key, None)
        self._changed.set()
