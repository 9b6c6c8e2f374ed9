"""The gateway's side of quota: reservations for its requests, kept alive, settled once, through a store's outages."""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, RateLimited
from ridgeline_contracts.ids import TenantId

from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.backlog import Backlog
from ridgeline_gateway.quota.limits import Amounts
from ridgeline_gateway.quota.local_share import LocalShare
from ridgeline_gateway.quota.steps import Standing, Status, StepResult, refusal, standing_after
from ridgeline_gateway.quota.store import LEASE_MS, AccountStore
from ridgeline_gateway.redis_link import StoreUnreachable
from ridgeline_gateway.tenants import StoreLoss, Tenant

_log = logging.getLogger(__name__)
_TICK_MS = 1000
_REPLAY_MS = 10_000
"""How far back settlements are told again to a store that has started again: what it may have lost."""
_MOST_PENDING = 100_000


@dataclass(slots=True)
class Grant:
    """A live request's reservation. Settle it exactly once."""

    lease_id: LeaseId
    tenant: Tenant
    held: Amounts
    standing: Standing
    renewed_ms: float
    alone: bool = False
    """Granted, or raised, without the store: no level that was seen knows of it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    reserved_micro: int
    charged_micro: int
    refunded_micro: int
    standing: Standing

    @property
    def not_returned_micro(self) -> int:
        """Unused, but the bucket had refilled past it."""
        return self.reserved_micro - self.charged_micro - self.refunded_micro


@dataclass(frozen=True, slots=True)
class _Settlement:
    tenant: Tenant
    lease_id: LeaseId
    charged: Amounts
    entry: str


class QuotaDesk:
    """Reserves, tops up, settles. `keep` must run: it renews leases and repeats what a lost store did not take."""

    def __init__(self, store: AccountStore, backlog: Backlog, *, clock: Clock, gateway_id: str) -> None:
        self._store = store
        self._clock = clock
        self._gateway_id = gateway_id
        self._replicas = 1
        self._open: dict[LeaseId, Grant] = {}
        self._settling: set[LeaseId] = set()
        self._backlog = backlog
        self._pending: dict[LeaseId, _Settlement] = {
            lease_id: _Settlement(tenant, lease_id, charged, entry)
            for tenant, lease_id, charged, entry in backlog.read()
        }
        self._recent: deque[tuple[float, _Settlement]] = deque()
        self._seen: dict[TenantId, StepResult] = {}
        self._local: LocalShare | None = None
        self._epoch = store.epoch
        self._catching_up = asyncio.Lock()
        self.admitted_alone = 0
        """Requests that were admitted without the store."""
        self.refused_alone = 0

    @property
    def store_lost(self) -> bool:
        """The last step did not reach the store."""
        return self._local is not None

    @property
    def unsettled(self) -> int:
        """Settlements that the store has not taken yet."""
        return len(self._pending)

    @property
    def open_leases(self) -> int:
        return len(self._open)

    async def reserve(self, tenant: Tenant, lease_id: LeaseId, wanted: Amounts) -> Grant:
        """Raises InvalidRequest for what can never fit, RateLimited with the true wait, and, for a tenant that a
        lost store stops, StoreUnreachable."""
        alone = False
        try:
            await self._synchronised()
            result = await self._store.reserve(tenant.tenant_id, tenant.limits, lease_id, wanted)
            self._reached(tenant, result)
        except StoreUnreachable:
            alone = True
            result = self._reserve_alone(tenant, lease_id, wanted)
        if result.status is Status.SETTLED:
            raise InvariantError(f"lease {lease_id} was settled before it was reserved")
        if result.status is not Status.DONE:
            raise refusal(result, wanted, tenant.limits)
        standing = standing_after(result, tenant.limits)
        grant = Grant(lease_id, tenant, result.reserved, standing, self._clock.monotonic_ms(), alone)
        self._open[lease_id] = grant
        return grant

    async def raise_to(self, grant: Grant, tokens_micro: int) -> None:
        """Raises the reservation to a total. Raises RateLimited when bucket and debt cap do not hold that."""
        totals = Amounts(tokens_micro, grant.held.kv_micro)
        result = await self._renew(grant, totals)
        if result.status is Status.REFUSED:
            raise RateLimited(
                "your quota and your debt cap are used up in the middle of this reply: it ends here",
                retry_after_ms=standing_after(result, grant.tenant.limits).reset_ms,
            )

    async def settle(self, grant: Grant, charged: Amounts, entry: str) -> Receipt:
        """Charges, gives the rest back, writes the ledger. While the store is lost that happens when it is back."""
        if grant.lease_id not in self._open or grant.lease_id in self._settling:
            raise InvariantError(f"lease {grant.lease_id} was settled twice")
        settlement = _Settlement(grant.tenant, grant.lease_id, charged, entry)
        self._settling.add(grant.lease_id)
        try:
            await self._synchronised()
            result = await self._send(settlement)
        except StoreUnreachable:
            return self._settle_alone(grant, settlement)
        finally:
            self._settling.discard(grant.lease_id)
            self._open.pop(grant.lease_id, None)
        standing = standing_after(result, grant.tenant.limits)
        return Receipt(
            result.reserved.tokens_micro, result.charged.tokens_micro, result.refunded.tokens_micro, standing
        )

    async def standing(self, tenant: Tenant) -> Standing:
        """Raises StoreUnreachable."""
        result = await self._store.standing(tenant.tenant_id, tenant.limits)
        return standing_after(result, tenant.limits)

    async def keep(self) -> None:
        """For ever: every second what the store lacks, leases before they run out. Ends by cancellation."""
        while True:
            await asyncio.sleep(_TICK_MS / 1000)
            await self.tick()

    async def tick(self) -> None:
        """One round of `keep`."""
        now_ms = self._clock.monotonic_ms()
        while self._recent and self._recent[0][0] < now_ms - _REPLAY_MS:
            self._recent.popleft()
        try:
            self._replicas = await self._store.announce(self._gateway_id)
            if self._local is not None:
                await self._catch_up()
            await self._synchronised()
            for settlement in list(self._pending.values()):
                await self._send(settlement)
            for grant in [grant for grant in self._open.values() if now_ms - grant.renewed_ms > LEASE_MS / 3]:
                await self._renew(grant, grant.held)
        except StoreUnreachable:
            # Said once, when it was lost; the next tick tries again.
            return

    async def close(self) -> None:
        """A last try for what is not settled, then the store. What it does not take is kept for the next start."""
        await self.tick()
        if self._pending:
            _log.error("quota.unsettled count=%d", len(self._pending))
        self._backlog.write(
            [(each.tenant, each.lease_id, each.charged, each.entry) for each in self._pending.values()]
        )
        await self._store.close()

    async def _synchronised(self) -> None:
        if self._store.epoch != self._epoch:
            await self._catch_up()

    async def _catch_up(self) -> None:
        """Tells a store that is back, or another one, what it may not know: levels, open leases, last settlements."""
        async with self._catching_up:
            epoch = self._store.epoch
            if epoch == self._epoch and self._local is None:
                return
            if epoch == self._epoch:
                # The same server, after a silence: only leases may have run out.
                for grant in list(self._open.values()):
                    await self._renew(grant, grant.held)
                return
            tenants = {grant.tenant.tenant_id: grant.tenant for grant in self._open.values()}
            tenants |= {each.tenant.tenant_id: each.tenant for _, each in self._recent}
            for tenant_id, tenant in tenants.items():
                seen = self._seen.get(tenant_id)
                if seen is not None:
                    await self._store.restore(tenant_id, tenant.limits, seen.level, seen_us=seen.now_us)
            for _, settlement in list(self._recent):
                await self._send(settlement, recovered=True)
            for grant in list(self._open.values()):
                await self._renew(grant, grant.held, recovered=not grant.alone)
            self._epoch = epoch

    async def _renew(self, grant: Grant, totals: Amounts, *, recovered: bool = False) -> StepResult:
        tenant = grant.tenant
        try:
            result = await self._store.renew(
                tenant.tenant_id, tenant.limits, grant.lease_id, totals, recovered=recovered
            )
            self._reached(tenant, result)
            grant.alone = False
        except StoreUnreachable as error:
            if totals == grant.held:
                raise
            self._lost(error)
            assert self._local is not None
            grant.alone = True
            result = self._local.renew(
                tenant.tenant_id, tenant.limits, grant.lease_id, totals, now_us=self._now_us()
            )
        if result.status is Status.DONE:
            grant.held = Amounts(max(grant.held.tokens_micro, totals.tokens_micro), grant.held.kv_micro)
            grant.renewed_ms = self._clock.monotonic_ms()
        return result

    async def _send(self, settlement: _Settlement, *, recovered: bool = False) -> StepResult:
        tenant = settlement.tenant
        result = await self._store.settle(
            tenant.tenant_id,
            tenant.limits,
            settlement.lease_id,
            settlement.charged,
            settlement.entry,
            recovered=recovered,
        )
        self._pending.pop(settlement.lease_id, None)
        self._reached(tenant, result)
        if not recovered:
            self._recent.append((self._clock.monotonic_ms(), settlement))
        return result

    def _reserve_alone(self, tenant: Tenant, lease_id: LeaseId, wanted: Amounts) -> StepResult:
        error = StoreUnreachable("the shared quota store does not answer: retry soon", retry_after_ms=1000)
        self._lost(error)
        if tenant.on_store_loss is StoreLoss.CLOSED or len(self._pending) >= _MOST_PENDING:
            self.refused_alone += 1
            raise error
        assert self._local is not None
        result = self._local.reserve(tenant.tenant_id, tenant.limits, lease_id, wanted, now_us=self._now_us())
        self.admitted_alone += result.status is Status.DONE
        return result

    def _settle_alone(self, grant: Grant, settlement: _Settlement) -> Receipt:
        self._lost(StoreUnreachable("the shared quota store does not answer"))
        self._pending[grant.lease_id] = settlement
        assert self._local is not None
        tenant, charged = grant.tenant, settlement.charged
        self._local.settle(tenant.tenant_id, tenant.limits, grant.lease_id, charged, now_us=self._now_us())
        held, used = grant.held.tokens_micro, charged.tokens_micro
        return Receipt(held, used, max(0, held - used), grant.standing)

    def _reached(self, tenant: Tenant, result: StepResult) -> None:
        if self._store.epoch == self._epoch:
            # Else it tells of a store that has not been told yet what it forgot.
            self._seen[tenant.tenant_id] = result
        if self._local is not None:
            _log.warning("quota.store_back unsettled=%d", len(self._pending))
            self._local = None

    def _lost(self, error: StoreUnreachable) -> None:
        if self._local is None:
            _log.error("quota.store_lost reason=%s", error.message)
            self._local = LocalShare(self._replicas, self._seen)

    def _now_us(self) -> int:
        return round(self._clock.monotonic_ms() * 1000)


def wanted_within(wanted: Amounts, tenant: Tenant) -> Amounts:
    """An estimate of KV-seconds must not make a request impossible: at most what a full bucket holds."""
    kv = tenant.kv_quota
    return wanted if kv is None else Amounts(wanted.tokens_micro, min(wanted.kv_micro, kv.burst_micro))
