"""Limits of a tenant, and the arithmetic of one bucket. Integers throughout; pure."""

from dataclasses import dataclass
from typing import NamedTuple

from ridgeline_contracts.errors import SettingsError

MICRO = 1_000_000
UNIT = "resource-tokens"
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

    def refilled(self, level: int, carry: int, *, elapsed_us: int) -> tuple[int, int]:
        """Level and carry after so long. `carry` is what is below one micro-token, in millionths of it."""
        gained, carry = divmod(self.rate_micro_per_s * elapsed_us + carry, _US_PER_S)
        if level + gained >= self.burst_micro:
            return self.burst_micro, 0
        return level + gained, carry

    def wait_us(self, level: int, carry: int, *, until: int) -> int:
        """How long refill alone takes to bring the bucket to `until`."""
        missing = max(0, until - level) * _US_PER_S - carry
        return max(0, -(-missing // self.rate_micro_per_s))


class Amounts(NamedTuple):
    """What a request holds or is charged, of both resources."""

    tokens_micro: int = 0
    """Micro resource tokens."""
    kv_micro: int = 0
    """Micro KV-token-seconds."""


NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """None: unlimited."""

    tokens: BucketLimits | None = None
    kv: BucketLimits | None = None
    max_concurrent: int | None = None
    debt_cap_micro: int = 0
    """How far a running request may take the tokens below zero."""

    @property
    def buckets(self) -> tuple[BucketLimits | None, BucketLimits | None]:
        """In the order of Amounts."""
        return self.tokens, self.kv
