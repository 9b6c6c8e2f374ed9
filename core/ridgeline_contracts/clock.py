"""The one clock. Code under test takes a `Clock`; only this module reads the machine's."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Milliseconds. `monotonic_ms` is for durations and deadlines, `wall_ms` (Unix epoch) only for display."""

    def monotonic_ms(self) -> float: ...

    def wall_ms(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1e6

    def wall_ms(self) -> float:
        return time.time_ns() / 1e6


@dataclass(slots=True)
class VirtualClock:
    """A clock that moves when it is told to: for tests and for the twin."""

    now_ms: float = 0.0
    epoch_ms: float = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms

    def wall_ms(self) -> float:
        return self.epoch_ms + self.now_ms

    def advance(self, by_ms: float) -> None:
        """Moves time forward. Raises ValueError for a negative step: this clock is monotonic too."""
        if by_ms < 0:
            raise ValueError(f"a clock cannot go back: advance({by_ms})")
        self.now_ms += by_ms
