"""Quota: one token bucket a tenant over all its models, in resource tokens."""

import math
from dataclasses import dataclass
from typing import Protocol

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvalidRequest, RateLimited
from ridgeline_contracts.ids import RequestId, ReservationId, TenantId

from ridgeline_gateway.bucket import MICRO, Rejected, TokenBucket
from ridgeline_gateway.tenants import Tenant

UNIT = "resource-tokens"


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-tokens a token. One resource token is one uncached prompt token of the reference model."""

    prompt_micro: int = MICRO
    cached_micro: int = MICRO
    output_micro: int = MICRO

    def of(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        uncached = prompt_tokens - cached_tokens
        return (
            uncached * self.prompt_micro
            + cached_tokens * self.cached_micro
            + output_tokens * self.output_micro
        )


@dataclass(frozen=True, slots=True)
class Standing:
    """A bucket at one moment. `limit_micro` None: unlimited."""

    limit_micro: int | None
    remaining_micro: int | None
    reset_ms: int | None
    """Until the bucket is full, by refill alone."""
    reserved_micro: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A reservation that must be settled exactly once."""

    reservation: ReservationId
    tenant_id: TenantId
    reserved_micro: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class Receipt:
    """`not_returned_micro` was unused, but the bucket had refilled past it."""

    reserved_micro: int
    charged_micro: int
    refunded_micro: int
    standing: Standing

    @property
    def not_returned_micro(self) -> int:
        return self.reserved_micro - self.charged_micro - self.refunded_micro


class QuotaStore(Protocol):
    """Where buckets live."""

    async def reserve(self, tenant: Tenant, request_id: RequestId, amount_micro: int) -> Grant:
        """Raises RateLimited with the true wait, or InvalidRequest for an amount that can never fit."""
        ...

    async def settle(self, grant: Grant, charged_micro: int) -> Receipt:
        """Charges, gives the rest back. Raises InvariantError when done twice."""
        ...

    async def standing(self, tenant: Tenant) -> Standing: ...


class InProcessQuota:
    """Buckets of this process: for a single gateway. They start full."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[TenantId, TokenBucket] = {}

    async def reserve(self, tenant: Tenant, request_id: RequestId, amount_micro: int) -> Grant:
        reservation = ReservationId(request_id)
        bucket = self._bucket(tenant)
        if bucket is None:
            return Grant(reservation, tenant.tenant_id, amount_micro, Standing(None, None, None))
        outcome = bucket.reserve(reservation, amount_micro, now_us=self._now_us())
        if isinstance(outcome, Rejected):
            raise _refusal(outcome, amount_micro, bucket.limits.burst_micro)
        return Grant(reservation, tenant.tenant_id, amount_micro, self._standing(bucket))

    async def settle(self, grant: Grant, charged_micro: int) -> Receipt:
        bucket = self._buckets.get(grant.tenant_id)
        if bucket is None or grant.standing.limit_micro is None:
            refunded = grant.reserved_micro - charged_micro
            return Receipt(grant.reserved_micro, charged_micro, refunded, Standing(None, None, None))
        settled = bucket.settle(grant.reservation, charged_micro, now_us=self._now_us())
        return Receipt(
            settled.reserved_micro, settled.charged_micro, settled.refunded_micro, self._standing(bucket)
        )

    async def standing(self, tenant: Tenant) -> Standing:
        bucket = self._bucket(tenant)
        return Standing(None, None, None) if bucket is None else self._standing(bucket)

    def _bucket(self, tenant: Tenant) -> TokenBucket | None:
        if tenant.quota is None:
            return None
        bucket = self._buckets.get(tenant.tenant_id)
        if bucket is None:
            bucket = self._buckets[tenant.tenant_id] = TokenBucket(tenant.quota, now_us=self._now_us())
        elif bucket.limits != tenant.quota:
            bucket.change_limits(tenant.quota, now_us=self._now_us())
        return bucket

    def _standing(self, bucket: TokenBucket) -> Standing:
        now_us = self._now_us()
        return Standing(
            limit_micro=bucket.limits.burst_micro,
            remaining_micro=bucket.level_micro(now_us),
            reset_ms=math.ceil(bucket.full_after_us(now_us) / 1000),
            reserved_micro=bucket.reserved_micro,
        )

    def _now_us(self) -> int:
        return int(self._clock.monotonic_ms() * 1000)


def _refusal(rejected: Rejected, amount_micro: int, burst_micro: int) -> InvalidRequest | RateLimited:
    wants = f"this request can use {amount_micro / MICRO:g} {UNIT}"
    if rejected.retry_after_us is None:
        return InvalidRequest(
            f"{wants}; your quota never holds more than {burst_micro / MICRO:g}: ask for fewer tokens",
            param="max_tokens",
        )
    retry_after_ms = math.ceil(rejected.retry_after_us / 1000)
    return RateLimited(
        f"{wants}; your quota holds {rejected.remaining_micro / MICRO:g} now: retry in {retry_after_ms} ms",
        retry_after_ms=retry_after_ms,
    )
