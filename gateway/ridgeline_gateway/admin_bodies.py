"""What the admin API takes and gives."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import ModelName, TenantId

from ridgeline_gateway.bucket import MICRO, BucketLimits
from ridgeline_gateway.quota import UNIT, Standing
from ridgeline_gateway.tenants import KeyRecord, Tenant, TenantClass

_LARGEST_TOKENS = (2**53 - 1) / MICRO


class QuotaBody(BaseModel):
    """Resource tokens. Stored as whole micro-tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rate_tokens_per_s: float = Field(gt=0, le=_LARGEST_TOKENS)
    burst_tokens: float = Field(gt=0, le=_LARGEST_TOKENS)

    def limits(self) -> BucketLimits:
        """Raises InvalidRequest for less than one micro-token."""
        rate, burst = round(self.rate_tokens_per_s * MICRO), round(self.burst_tokens * MICRO)
        if not rate or not burst:
            raise InvalidRequest(
                "a quota below a millionth of a token cannot be kept: give more", param="quota"
            )
        return BucketLimits(rate_micro_per_s=rate, burst_micro=burst)


class TenantBody(BaseModel):
    """A tenant as PUT replaces it: what is left out takes its default."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, min_length=1, max_length=256)
    models: list[str] | None = None
    """Left out: all models."""
    weight: float = Field(default=1.0, gt=0, le=1000)
    tenant_class: str = Field(default=TenantClass.INTERACTIVE.value, alias="class")
    quota: QuotaBody | None = None
    """Left out: unlimited."""
    trust_group: str | None = Field(default=None, min_length=1, max_length=256)
    max_context_tokens: int | None = Field(default=None, ge=1)
    max_output_tokens: int | None = Field(default=None, ge=1)

    def tenant(self, tenant_id: TenantId) -> Tenant:
        """Raises InvalidRequest for an unknown class."""
        known = [found.value for found in TenantClass]
        if self.tenant_class not in known:
            raise InvalidRequest(
                f"class {self.tenant_class!r} is unknown: give one of {', '.join(known)}", param="class"
            )
        return Tenant(
            tenant_id=tenant_id,
            name=self.name or tenant_id,
            models=None if self.models is None else tuple(ModelName(name) for name in self.models),
            weight=self.weight,
            tenant_class=TenantClass(self.tenant_class),
            quota=None if self.quota is None else self.quota.limits(),
            trust_group=self.trust_group,
            max_context_tokens=self.max_context_tokens,
            max_output_tokens=self.max_output_tokens,
        )


class KeyBody(BaseModel):
    """A new key. All may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = None
    """A key made elsewhere; left out: one is made here. The same key twice is no error."""
    ttl_s: float | None = Field(default=None, gt=0)
    """How long it works; left out: until it is revoked."""


def tenant_object(tenant: Tenant, standing: Standing) -> dict[str, Any]:
    """A tenant with its bucket as it stands here."""
    quota = tenant.quota
    return {
        "id": tenant.tenant_id,
        "name": tenant.name,
        "models": None if tenant.models is None else list(tenant.models),
        "weight": tenant.weight,
        "class": tenant.tenant_class.value,
        "quota": None
        if quota is None
        else {
            "rate_tokens_per_s": quota.rate_micro_per_s / MICRO,
            "burst_tokens": quota.burst_micro / MICRO,
        },
        "trust_group": tenant.trust_group,
        "max_context_tokens": tenant.max_context_tokens,
        "max_output_tokens": tenant.max_output_tokens,
        "standing": standing_object(standing),
    }


def standing_object(standing: Standing) -> dict[str, Any] | None:
    """None for an unlimited tenant."""
    if standing.limit_micro is None or standing.remaining_micro is None:
        return None
    return {
        "unit": UNIT,
        "limit_tokens": standing.limit_micro / MICRO,
        "remaining_tokens": standing.remaining_micro / MICRO,
        "reserved_tokens": standing.reserved_micro / MICRO,
        "reset_ms": standing.reset_ms,
    }


def key_object(key: KeyRecord, *, now_wall_ms: float) -> dict[str, Any]:
    """A key without its secret. Times are Unix milliseconds."""
    return {
        "id": key.key_id,
        "tenant": key.tenant_id,
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "revoked_ms": key.revoked_ms,
        "works": key.works_at(now_wall_ms),
    }
