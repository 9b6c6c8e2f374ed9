"""Where tenants' accounts and their ledgers live: one contract, two implementations."""

from typing import Protocol

from ridgeline_contracts.ids import TenantId

from ridgeline_gateway.ledger.record import LedgerRecord
from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.limits import Amounts, QuotaLimits
from ridgeline_gateway.quota.steps import StepResult

LEASE_MS = 30_000
"""A lease that nobody renews for so long gives back what it holds."""
ALIVE_MS = 10_000
"""A gateway that has announced itself within so long counts as one that shares the store."""
REMEMBER_MS = 600_000
"""How long a settlement is known as such: repetitions come within seconds."""


class AccountStore(Protocol):
    """Steps on accounts, each atomic, each harmless to repeat. They are those of `Account`, on the store's own clock.

    Raises StoreUnreachable when it is not known whether a step was taken: repeat it.
    """

    @property
    def epoch(self) -> int:
        """Changes when another server, or the same one started again, answers: it may have forgotten the last steps."""
        ...

    async def announce(self, gateway_id: str) -> int:
        """Says that this gateway lives; returns how many do that share the store."""
        ...

    async def standing(self, tenant_id: TenantId, limits: QuotaLimits) -> StepResult: ...

    async def reserve(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, wanted: Amounts
    ) -> StepResult: ...

    async def renew(
        self,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        totals: Amounts,
        *,
        recovered: bool = False,
    ) -> StepResult: ...

    async def restore(
        self, tenant_id: TenantId, limits: QuotaLimits, seen: Amounts, *, seen_us: int
    ) -> StepResult: ...

    async def settle(
        self,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        charged: Amounts,
        entry: str,
        *,
        recovered: bool = False,
    ) -> StepResult:
        """Writes `entry` into the tenant's ledger in the same step, once."""
        ...

    async def records(
        self, tenant_id: TenantId, *, since_ms: int, until_ms: int, after: str | None, most: int
    ) -> list[LedgerRecord]:
        """Of the ledger, oldest first, settled in [since, until); after that position, where one is given."""
        ...

    async def close(self) -> None: ...
