"""What a step on a tenant's account answers: the same numbers from every store. Pure."""

import math
from dataclasses import dataclass
from enum import IntEnum

from ridgeline_contracts.errors import InvalidRequest, RateLimited

from ridgeline_gateway.quota.limits import MICRO, UNIT, Amounts, QuotaLimits

_CROWDED_RETRY_MS = 1000


class Status(IntEnum):
    """How a step went. The numbers are those of the Lua scripts."""

    DONE = 0
    REFUSED = 1
    """Does not fit now."""
    NEVER = 2
    """Does not fit into a full bucket."""
    CROWDED = 3
    """Too many requests at once."""
    SETTLED = 4
    """This lease was settled before; the answer repeats how."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step's answer. Levels are of the moment after it; a resource without a limit has level 0."""

    status: Status
    reserved: Amounts
    charged: Amounts
    refunded: Amounts
    level: Amounts
    carry: Amounts
    held: Amounts
    open_leases: int
    now_us: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A tenant's account at one moment. None: unlimited."""

    limit_micro: int | None = None
    remaining_micro: int | None = None
    """Below zero: a debt."""
    reset_ms: int | None = None
    """Until the bucket is full, by refill alone."""
    reserved_micro: int = 0
    kv_limit_micro: int | None = None
    kv_remaining_micro: int | None = None
    kv_reset_ms: int | None = None
    max_concurrent: int | None = None
    open_requests: int = 0


def standing_after(result: StepResult, limits: QuotaLimits) -> Standing:
    """The account as the step left it."""
    tokens, kv = limits.buckets

    def reset_ms(index: int) -> int | None:
        bucket = limits.buckets[index]
        if bucket is None:
            return None
        wait_us = bucket.wait_us(result.level[index], result.carry[index], until=bucket.burst_micro)
        return math.ceil(wait_us / 1000)

    return Standing(
        limit_micro=None if tokens is None else tokens.burst_micro,
        remaining_micro=None if tokens is None else result.level.tokens_micro,
        reset_ms=reset_ms(0),
        reserved_micro=result.held.tokens_micro,
        kv_limit_micro=None if kv is None else kv.burst_micro,
        kv_remaining_micro=None if kv is None else result.level.kv_micro,
        kv_reset_ms=reset_ms(1),
        max_concurrent=limits.max_concurrent,
        open_requests=result.open_leases,
    )


def refusal(result: StepResult, wanted: Amounts, limits: QuotaLimits) -> RateLimited | InvalidRequest:
    """The error for a reservation that was not made: 400 for what can never fit, else 429 with the true wait."""
    if result.status is Status.CROWDED:
        return RateLimited(
            f"{result.open_leases} of your requests run now, and your limit is {limits.max_concurrent}: retry when "
            "one has ended",
            retry_after_ms=_CROWDED_RETRY_MS,
        )
    short = [index for index in (0, 1) if _is_short(result, wanted, limits, index)]
    index = short[0] if short else 0
    unit = (UNIT, "KV-token-seconds")[index]
    wants = f"this request can use {wanted[index] / MICRO:g} {unit}"
    bucket = limits.buckets[index]
    assert bucket is not None, "a resource without a limit refuses nothing"
    if result.status is Status.NEVER:
        return InvalidRequest(
            f"{wants}; your quota never holds more than {bucket.burst_micro / MICRO:g}: ask for fewer tokens",
            param="max_tokens",
        )
    retry_after_ms = math.ceil(max(_wait_us(result, wanted, limits, each) for each in short) / 1000)
    return RateLimited(
        f"{wants}; your quota holds {result.level[index] / MICRO:g} now: retry in {retry_after_ms} ms",
        retry_after_ms=retry_after_ms,
    )


def _is_short(result: StepResult, wanted: Amounts, limits: QuotaLimits, index: int) -> bool:
    bucket = limits.buckets[index]
    if bucket is None:
        return False
    most = bucket.burst_micro if result.status is Status.NEVER else result.level[index]
    return wanted[index] > most


def _wait_us(result: StepResult, wanted: Amounts, limits: QuotaLimits, index: int) -> int:
    bucket = limits.buckets[index]
    assert bucket is not None
    return bucket.wait_us(result.level[index], result.carry[index], until=wanted[index])
