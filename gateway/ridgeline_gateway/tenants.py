"""Tenants and their keys, as facts, and the store that keeps them."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import KeyId, ModelName, TenantId

from ridgeline_gateway.prices.price import Price
from ridgeline_gateway.quota.limits import BucketLimits, QuotaLimits

_TENANT_ID = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class TenantClass(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class StoreLoss(StrEnum):
    """What happens to a tenant's requests while the shared quota store cannot be reached."""

    OPEN = "open"
    """Each gateway admits its share of the tenant's rate."""
    CLOSED = "closed"
    """Refused with 503."""


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant_id: TenantId
    name: str
    models: tuple[ModelName, ...] | None = None
    """None: all models."""
    weight: float = 1.0
    """Share under contention, relative to other tenants."""
    tenant_class: TenantClass = TenantClass.INTERACTIVE
    quota: BucketLimits | None = None
    """None: unlimited."""
    trust_group: str | None = None
    """Tenants of one group share cached prefixes. None: this tenant alone."""
    max_context_tokens: int | None = None
    max_output_tokens: int | None = None
    kv_quota: BucketLimits | None = None
    """Micro KV-token-seconds: KV tokens held times seconds. None: unlimited."""
    max_concurrent_requests: int | None = None
    debt_cap_micro: int = 0
    """How far a running request without max_tokens may take the bucket below zero."""
    on_store_loss: StoreLoss = StoreLoss.OPEN

    @property
    def limits(self) -> QuotaLimits:
        return QuotaLimits(self.quota, self.kv_quota, self.max_concurrent_requests, self.debt_cap_micro)

    def may_use(self, model: ModelName) -> bool:
        return self.models is None or model in self.models


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """A key as it is kept. Times are Unix milliseconds."""

    key_id: KeyId
    tenant_id: TenantId
    key_hash: bytes
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None

    def works_at(self, wall_ms: float) -> bool:
        return self.revoked_ms is None and (self.expires_ms is None or wall_ms < self.expires_ms)


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """What a key id leads to."""

    key: KeyRecord
    tenant: Tenant


class TenantStore(Protocol):
    """Keeps tenants and keys. Every call is atomic; a call that returned is as durable as the store is.

    Every call may raise PeerError when the store cannot be reached.
    """

    async def put_tenant(self, tenant: Tenant) -> bool:
        """Creates or replaces. True if it was created."""
        ...

    async def tenant(self, tenant_id: TenantId) -> Tenant | None: ...

    async def tenants(self) -> list[Tenant]:
        """All, by id."""
        ...

    async def delete_tenant(self, tenant_id: TenantId) -> bool:
        """With all its keys. False if there was none."""
        ...

    async def add_key(self, key: KeyRecord) -> None:
        """Raises NotFound for an unknown tenant, Conflict for a key id that exists."""
        ...

    async def rotate_keys(self, key: KeyRecord, *, others_end_wall_ms: int) -> None:
        """Adds `key`; the tenant's other keys expire at `others_end_wall_ms` unless they do so earlier.

        Raises as `add_key` does, and then changes nothing.
        """
        ...

    async def keys(self, tenant_id: TenantId) -> list[KeyRecord]:
        """All of a tenant, oldest first."""
        ...

    async def revoke_key(self, key_id: KeyId, *, at_wall_ms: int) -> bool:
        """False if there is no such key. Revoking twice keeps the first time."""
        ...

    async def freeze_price(self, price: Price) -> None:
        """Raises Conflict if this model has such a version already."""
        ...

    async def prices(self) -> list[Price]:
        """All versions of all models, those of a model in the order in which they were frozen."""
        ...

    async def owner_of(self, key_id: KeyId) -> KeyOwner | None: ...

    async def close(self) -> None: ...


def check_tenant_id(text: str) -> TenantId:
    """Raises InvalidRequest unless `text` is a DNS label, which every store and label can hold."""
    if not _TENANT_ID.fullmatch(text):
        raise InvalidRequest(
            f"tenant id {text!r} is not valid: use 1 to 63 lower-case letters, digits and inner hyphens",
            param="id",
        )
    return TenantId(text)
