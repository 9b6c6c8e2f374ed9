"""What one gateway may admit by itself while the shared store is lost: its share of each tenant's limits."""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline_contracts.ids import TenantId

from ridgeline_gateway.quota.account import Account, LeaseId
from ridgeline_gateway.quota.limits import Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.steps import StepResult

_LEASE_US = 10**15
_KNOWN = LeaseId("what was gone when the store was lost")


class LocalShare:
    """Accounts of one outage; make a new one for the next. Rate, burst and requests at once are divided by `replicas`.

    A bucket begins with this gateway's share of what was left when it was last seen.
    """

    def __init__(self, replicas: int, last_seen: Mapping[TenantId, StepResult]) -> None:
        self._replicas = max(1, replicas)
        self._last_seen = last_seen
        self._accounts: dict[TenantId, Account] = {}

    def reserve(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, wanted: Amounts, *, now_us: int
    ) -> StepResult:
        account, share = self._account(tenant_id, limits, now_us)
        return account.reserve(lease_id, wanted, share, lease_us=_LEASE_US, now_us=now_us)

    def renew(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, totals: Amounts, *, now_us: int
    ) -> StepResult:
        account, share = self._account(tenant_id, limits, now_us)
        return account.renew(lease_id, totals, share, lease_us=_LEASE_US, now_us=now_us)

    def settle(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, charged: Amounts, *, now_us: int
    ) -> StepResult:
        account, share = self._account(tenant_id, limits, now_us)
        return account.settle(lease_id, charged, share, now_us=now_us)

    def share_of(self, limits: QuotaLimits) -> QuotaLimits:
        """A tenant's limits, divided."""

        def part(bucket: BucketLimits | None) -> BucketLimits | None:
            if bucket is None:
                return None
            rate, burst = bucket.rate_micro_per_s, bucket.burst_micro
            return BucketLimits(max(1, rate // self._replicas), max(1, burst // self._replicas))

        most = limits.max_concurrent
        return replace(
            limits,
            tokens=part(limits.tokens),
            kv=part(limits.kv),
            max_concurrent=None if most is None else max(1, most // self._replicas),
            debt_cap_micro=limits.debt_cap_micro // self._replicas,
        )

    def _account(self, tenant_id: TenantId, limits: QuotaLimits, now_us: int) -> tuple[Account, QuotaLimits]:
        share = self.share_of(limits)
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account()
            seen = self._last_seen.get(tenant_id)
            if seen is not None:
                gone = (
                    0 if bucket is None else max(0, bucket.burst_micro - seen.level[index] // self._replicas)
                    for index, bucket in enumerate(share.buckets)
                )
                account.settle(_KNOWN, Amounts(*gone), share, now_us=now_us)
        return account, share
