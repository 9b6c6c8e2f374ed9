"""What a topic's own inputs may be: outside of it a formula would divide by zero or answer nonsense."""

import math
from dataclasses import dataclass

from ridgeline_contracts.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers from `low` to `high`, in base units."""

    low: float = 0.0
    high: float = math.inf
    low_itself: bool = True
    high_itself: bool = True
    whole: bool = False

    @property
    def words(self) -> str:
        """For a message: `more than 0 and at most 1`."""
        low = f"{self.low:g} or more" if self.low_itself else f"more than {self.low:g}"
        high = f"{'at most' if self.high_itself else 'less than'} {self.high:g}"
        kind = "a whole number, " if self.whole else ""
        return f"{kind}{low}" + ("" if math.isinf(self.high) else f" and {high}")

    def check(self, value: float, *, name: str, text: str) -> float:
        """The value itself. Raises SettingsError naming the input, its text and what would work."""
        low = value >= self.low if self.low_itself else value > self.low
        high = value <= self.high if self.high_itself else value < self.high
        if low and high and (not self.whole or value == int(value)):
            return value
        raise SettingsError(f"{name}={text!r}: give {self.words}", param=name)


NOT_NEGATIVE = Bounds()
POSITIVE = Bounds(low_itself=False)
SHARE = Bounds(high=1.0)
"""Of a whole; none and all are allowed."""
PART = Bounds(high=1.0, low_itself=False)
"""A share that divides: more than none of it."""
CHANCE = Bounds(high=1.0, low_itself=False, high_itself=False)
COUNTED = Bounds(low=1.0, high=4096, whole=True)
COUNTED_OR_NONE = Bounds(high=4096, whole=True)
AT_LEAST_ONE = Bounds(low=1.0)
EXPONENT = Bounds(high=4.0)
