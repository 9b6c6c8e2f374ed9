"""What the admin API takes and gives."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import ModelName, TenantId

from ridgeline_gateway.api_errors import invalid_body
from ridgeline_gateway.quota.limits import MICRO, UNIT, BucketLimits
from ridgeline_gateway.quota.steps import Standing
from ridgeline_gateway.tenants import KeyRecord, StoreLoss, Tenant, TenantClass

_LARGEST_TOKENS = (2**53 - 1) / MICRO


class QuotaBody(BaseModel):
    """Resource tokens. Stored as whole micro-tokens."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rate_tokens_per_s: float = Field(gt=0, le=_LARGEST_TOKENS)
    burst_tokens: float = Field(gt=0, le=_LARGEST_TOKENS)

    def limits(self) -> BucketLimits:
        """Raises InvalidRequest for less than one micro-token."""
        return _bucket_limits(self.rate_tokens_per_s, self.burst_tokens, param="quota")


class KvQuotaBody(BaseModel):
    """KV-token-seconds: tokens held in the KV cache, times seconds. Stored as whole millionths."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rate_token_s_per_s: float = Field(gt=0, le=_LARGEST_TOKENS)
    """Tokens of KV that may be held on average."""
    burst_token_s: float = Field(gt=0, le=_LARGEST_TOKENS)

    def limits(self) -> BucketLimits:
        """Raises InvalidRequest for less than a millionth."""
        return _bucket_limits(self.rate_token_s_per_s, self.burst_token_s, param="kv_quota")


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
    kv_quota: KvQuotaBody | None = None
    """Left out: unlimited."""
    max_concurrent_requests: int | None = Field(default=None, ge=1, le=1_000_000)
    debt_cap_tokens: float = Field(default=0.0, ge=0, le=_LARGEST_TOKENS)
    on_store_loss: str = StoreLoss.OPEN.value

    def tenant(self, tenant_id: TenantId) -> Tenant:
        """Raises InvalidRequest for an unknown class or way to meet a lost store."""
        _check_word(self.tenant_class, TenantClass, param="class")
        _check_word(self.on_store_loss, StoreLoss, param="on_store_loss")
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
            kv_quota=None if self.kv_quota is None else self.kv_quota.limits(),
            max_concurrent_requests=self.max_concurrent_requests,
            debt_cap_micro=round(self.debt_cap_tokens * MICRO),
            on_store_loss=StoreLoss(self.on_store_loss),
        )


class KeyBody(BaseModel):
    """A new key. All may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    key: str | None = None
    """A key made elsewhere; left out: one is made here. The same key twice is no error."""
    ttl_s: float | None = Field(default=None, gt=0)
    """How long it works; left out: until it is revoked."""


class RotationBody(BaseModel):
    """A new key in place of the others. All may be left out."""

    model_config = ConfigDict(extra="forbid", strict=True)

    overlap_s: float = Field(default=0.0, ge=0, le=366 * 86_400)
    """How long the tenant's other keys go on working."""
    ttl_s: float | None = Field(default=None, gt=0)


def merged_tenant(tenant: Tenant, changes: dict[str, Any]) -> TenantBody:
    """`tenant` with the given fields changed, the others as they are. Raises InvalidRequest as PUT does."""
    held = tenant_object(tenant, Standing())
    try:
        body = {name: held[name] for name in held if name not in ("id", "standing")} | changes
        return TenantBody.model_validate(body)
    except ValidationError as error:
        raise invalid_body(error) from error


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
        "kv_quota": None
        if tenant.kv_quota is None
        else {
            "rate_token_s_per_s": tenant.kv_quota.rate_micro_per_s / MICRO,
            "burst_token_s": tenant.kv_quota.burst_micro / MICRO,
        },
        "max_concurrent_requests": tenant.max_concurrent_requests,
        "debt_cap_tokens": tenant.debt_cap_micro / MICRO,
        "on_store_loss": tenant.on_store_loss.value,
        "standing": standing_object(standing),
    }


def standing_object(standing: Standing) -> dict[str, Any] | None:
    """None for a tenant without limit on tokens."""
    if standing.limit_micro is None or standing.remaining_micro is None:
        return None
    return {
        "unit": UNIT,
        "limit_tokens": standing.limit_micro / MICRO,
        "remaining_tokens": standing.remaining_micro / MICRO,
        "reserved_tokens": standing.reserved_micro / MICRO,
        "reset_ms": standing.reset_ms,
        "open_requests": standing.open_requests,
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


def _bucket_limits(rate: float, burst: float, *, param: str) -> BucketLimits:
    rate_micro, burst_micro = round(rate * MICRO), round(burst * MICRO)
    if not rate_micro or not burst_micro:
        raise InvalidRequest("a quota below a millionth of a token cannot be kept: give more", param=param)
    return BucketLimits(rate_micro_per_s=rate_micro, burst_micro=burst_micro)


def _check_word(given: str, words: type[StrEnum], *, param: str) -> None:
    known = [word.value for word in words]
    if given not in known:
        raise InvalidRequest(f"{param} {given!r} is unknown: give one of {', '.join(known)}", param=param)
