"""A token bucket in integer micro-tokens. Pure: time is an argument.

Over any interval of t seconds the requests admitted in it are charged at most burst + rate x t in the end. A
request reserves the most it can use and gets the rest back when it is settled, but only as much as the bucket
would hold now had it never been reserved: what the bucket has refilled above that meanwhile is not given
twice. So

    level + what reservations can still give back <= burst

at all times, and while a long request runs the bucket refills at its full rate.
"""

from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError, SettingsError
from ridgeline_contracts.ids import ReservationId

MICRO = 1_000_000
_US_PER_S = 1_000_000
_LARGEST = 2**53 - 1
"""JavaScript, Lua and JSON readers keep integers exact up to here."""


@dataclass(frozen=True, slots=True)
class BucketLimits:
    """`burst_micro` fills a bucket, `rate_micro_per_s` flows in. Raises SettingsError for values out of range."""

    rate_micro_per_s: int
    burst_micro: int

    def __post_init__(self) -> None:
        for name, value in (("rate", self.rate_micro_per_s), ("burst", self.burst_micro)):
            if not 0 < value <= _LARGEST:
                raise SettingsError(f"quota {name} of {value} micro-tokens is out of range: give 1 to 2^53-1")


@dataclass(frozen=True, slots=True)
class Reserved:
    remaining_micro: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """`retry_after_us` is when the bucket will hold enough by refill alone; None: it never can."""

    remaining_micro: int
    retry_after_us: int | None


@dataclass(frozen=True, slots=True)
class Settled:
    reserved_micro: int
    charged_micro: int
    refunded_micro: int
    remaining_micro: int


class TokenBucket:
    """One tenant's bucket, full at the start. `now_us` must not go back between calls."""

    def __init__(self, limits: BucketLimits, *, now_us: int) -> None:
        self._limits = limits
        self._level = limits.burst_micro
        self._carry = 0
        """Below one micro-token, in micro-tokens x microseconds a second."""
        self._updated_us = now_us
        self._reserved: dict[ReservationId, int] = {}
        self._refundable: dict[ReservationId, int] = {}
        """Oldest first; an entry leaves when refill has overtaken all of it."""
        self._refundable_total = 0

    @property
    def limits(self) -> BucketLimits:
        return self._limits

    @property
    def reserved_micro(self) -> int:
        """Held by requests that are not settled."""
        return sum(self._reserved.values())

    def level_micro(self, now_us: int) -> int:
        self._refill(now_us)
        return self._level

    def full_after_us(self, now_us: int) -> int:
        """When the bucket will be full by refill alone."""
        self._refill(now_us)
        return self._wait_us(self._limits.burst_micro)

    def reserve(self, reservation: ReservationId, amount_micro: int, *, now_us: int) -> Reserved | Rejected:
        """Takes `amount_micro` if the bucket holds it. Raises InvariantError for a reservation that exists."""
        if reservation in self._reserved or amount_micro < 0:
            raise InvariantError(
                f"cannot reserve {amount_micro} micro-tokens as {reservation}: used or negative"
            )
        self._refill(now_us)
        if amount_micro > self._level:
            fits = amount_micro <= self._limits.burst_micro
            return Rejected(self._level, self._wait_us(amount_micro) if fits else None)
        self._level -= amount_micro
        self._reserved[reservation] = amount_micro
        self._refundable[reservation] = amount_micro
        self._refundable_total += amount_micro
        return Reserved(self._level)

    def settle(self, reservation: ReservationId, charged_micro: int, *, now_us: int) -> Settled:
        """Ends a reservation. Raises InvariantError for an unknown one, or a charge above what it holds."""
        held = self._reserved.get(reservation)
        if held is None or not 0 <= charged_micro <= held:
            raise InvariantError(
                f"cannot charge {charged_micro} micro-tokens to {reservation}, which holds {held}"
            )
        self._refill(now_us)
        del self._reserved[reservation]
        refundable = self._refundable.pop(reservation, 0)
        self._refundable_total -= refundable
        refunded = min(held - charged_micro, refundable)
        self._level += refunded
        return Settled(held, charged_micro, refunded, self._level)

    def change_limits(self, limits: BucketLimits, *, now_us: int) -> None:
        """From now on. A smaller burst takes what lies above it; a larger one is filled by the rate."""
        self._refill(now_us)
        self._limits = limits
        self._level = min(self._level, limits.burst_micro)
        self._carry = 0
        self._shrink_refundable()

    def check(self) -> None:
        """Raises InvariantError if the bucket's books do not agree."""
        total = sum(self._refundable.values())
        if (
            total != self._refundable_total
            or not 0 <= self._level <= self._level + total <= self._limits.burst_micro
        ):
            raise InvariantError(
                f"bucket: level {self._level}, refundable {total} of {self._limits.burst_micro}"
            )

    def _refill(self, now_us: int) -> None:
        elapsed_us = now_us - self._updated_us
        if elapsed_us <= 0:
            return
        self._updated_us = now_us
        gained, self._carry = divmod(self._limits.rate_micro_per_s * elapsed_us + self._carry, _US_PER_S)
        self._level += gained
        if self._level >= self._limits.burst_micro:
            self._level, self._carry = self._limits.burst_micro, 0
        self._shrink_refundable()

    def _shrink_refundable(self) -> None:
        excess = self._level + self._refundable_total - self._limits.burst_micro
        while excess > 0:
            oldest = next(iter(self._refundable))
            taken = min(excess, self._refundable[oldest])
            excess -= taken
            self._refundable_total -= taken
            self._refundable[oldest] -= taken
            if not self._refundable[oldest]:
                del self._refundable[oldest]

    def _wait_us(self, amount_micro: int) -> int:
        missing = max(0, amount_micro - self._level) * _US_PER_S - self._carry
        return max(0, -(-missing // self._limits.rate_micro_per_s))
