"""What each tenant has had of the machine: a virtual counter, in milliseconds divided by the tenant's weight.

The tenant with the lowest counter goes first. One that comes back from idleness is lifted to the lowest counter
of those that are active: time in which it asked for nothing is no credit.
"""

from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import TenantId


@dataclass(slots=True, eq=False)
class TenantAccount:
    tenant: TenantId
    weight: float
    served_ms: float
    """Cost of the tokens that were planned for it, over its weight. It never falls."""
    sequences: int = 0
    """That wait or run."""

    def charge(self, cost_ms: float) -> None:
        self.served_ms += cost_ms / self.weight


class TenantAccounts:
    """Accounts of the active tenants, and of idle ones that have had more than the active."""

    def __init__(self) -> None:
        self._accounts: dict[TenantId, TenantAccount] = {}
        self._floor_ms = 0.0

    def enter(self, tenant: TenantId, weight: float) -> TenantAccount:
        """A sequence of the tenant arrives. The newest request's weight counts from now on."""
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = TenantAccount(tenant, weight, served_ms=0.0)
        if account.sequences == 0:
            self._raise_floor()
            account.served_ms = max(account.served_ms, self._floor_ms)
        account.weight = weight
        account.sequences += 1
        return account

    def leave(self, account: TenantAccount) -> None:
        """A sequence of the tenant has ended."""
        if account.sequences < 1:
            raise InvariantError(f"tenant {account.tenant!r} left more often than it came")
        account.sequences -= 1
        if account.sequences == 0:
            self._raise_floor(last_to_leave=account)
            self._forget_level()

    def active(self) -> tuple[TenantAccount, ...]:
        return tuple(each for each in self._accounts.values() if each.sequences)

    def __len__(self) -> int:
        return len(self._accounts)

    def _raise_floor(self, last_to_leave: TenantAccount | None = None) -> None:
        active = [each.served_ms for each in self._accounts.values() if each.sequences]
        if active:
            self._floor_ms = max(self._floor_ms, min(active))
        elif last_to_leave is not None:
            self._floor_ms = max(self._floor_ms, last_to_leave.served_ms)

    def _forget_level(self) -> None:
        """An idle account at the floor or below says nothing: its tenant would be lifted there anyway."""
        for tenant, each in tuple(self._accounts.items()):
            if each.sequences == 0 and each.served_ms <= self._floor_ms:
                del self._accounts[tenant]
