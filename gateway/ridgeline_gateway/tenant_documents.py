"""Tenants as JSON objects: how stores keep them. Unknown fields are refused, missing ones take their default."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import ModelName, TenantId

from ridgeline_gateway.quota.limits import BucketLimits
from ridgeline_gateway.tenants import StoreLoss, Tenant, TenantClass

_NAMES = frozenset(field.name for field in fields(Tenant))


def tenant_document(tenant: Tenant) -> str:
    """One line of JSON."""
    return json.dumps(
        {
            "tenant_id": tenant.tenant_id,
            "name": tenant.name,
            "models": tenant.models,
            "weight": tenant.weight,
            "tenant_class": tenant.tenant_class.value,
            "quota": _limits_object(tenant.quota),
            "trust_group": tenant.trust_group,
            "max_context_tokens": tenant.max_context_tokens,
            "max_output_tokens": tenant.max_output_tokens,
            "kv_quota": _limits_object(tenant.kv_quota),
            "max_concurrent_requests": tenant.max_concurrent_requests,
            "debt_cap_micro": tenant.debt_cap_micro,
            "on_store_loss": tenant.on_store_loss.value,
        },
        separators=(",", ":"),
    )


def read_tenant(document: str) -> Tenant:
    """Raises SettingsError for a document of a later version."""
    held: dict[str, Any] = json.loads(document)
    if unknown := sorted(set(held) - _NAMES):
        raise SettingsError(
            f"tenant {held.get('tenant_id')!r} is kept with {', '.join(unknown)}, unknown here: upgrade Ridgeline"
        )
    models = held.pop("models", None)
    return Tenant(
        tenant_id=TenantId(held.pop("tenant_id")),
        models=None if models is None else tuple(ModelName(name) for name in models),
        tenant_class=TenantClass(held.pop("tenant_class", TenantClass.INTERACTIVE)),
        quota=_limits(held.pop("quota", None)),
        kv_quota=_limits(held.pop("kv_quota", None)),
        on_store_loss=StoreLoss(held.pop("on_store_loss", StoreLoss.OPEN)),
        **held,
    )


def _limits_object(limits: BucketLimits | None) -> dict[str, int] | None:
    if limits is None:
        return None
    return {"rate_micro_per_s": limits.rate_micro_per_s, "burst_micro": limits.burst_micro}


def _limits(held: Mapping[str, int] | None) -> BucketLimits | None:
    return None if held is None else BucketLimits(**held)
