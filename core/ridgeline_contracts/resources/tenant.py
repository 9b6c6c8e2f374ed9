"""`Tenant` and `TenantKey`: who may use the platform, how much of it, and a key into a Secret."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar

from ridgeline_contracts.resources.field_rules import (
    Rule,
    Schema,
    count,
    fixed,
    more_than_zero,
    object_name,
    text,
)
from ridgeline_contracts.resources.status import ConditionObject

_MOST_TOKENS = 10**15


class RequestClass(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class OnStoreLoss(StrEnum):
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class TokenQuota:
    """A bucket of resource tokens over all models."""

    rate_tokens_per_second: Annotated[float, more_than_zero("Refill.", most=1e12)]
    burst_tokens: Annotated[int, count("Size of the bucket.", most=_MOST_TOKENS)]


@dataclass(frozen=True, slots=True)
class KvQuota:
    """A bucket of KV-token-seconds: tokens held in the KV cache, times seconds."""

    rate_token_seconds_per_second: Annotated[float, more_than_zero("Refill.", most=1e12)]
    burst_token_seconds: Annotated[int, count("Size of the bucket.", most=_MOST_TOKENS)]


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """Bounds of single requests, and of how many run."""

    max_concurrent_requests: Annotated[int | None, count("Requests that run at once.", most=1_000_000)] = None
    max_context_tokens: Annotated[int | None, count("Prompt and output of a request.", most=16_777_216)] = (
        None
    )
    max_output_tokens: Annotated[int | None, count("Output of a request.", most=16_777_216)] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.maxOutputTokens) || !has(self.maxContextTokens) "
            "|| self.maxOutputTokens <= self.maxContextTokens",
            "limits: maxOutputTokens exceeds maxContextTokens: lower it",
            ".maxOutputTokens",
        ),
    )


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """What a Tenant may do. What is left out is not limited."""

    display_name: Annotated[str | None, text("For people; default: the Tenant's name.", most=200)] = None
    quota: Annotated[TokenQuota | None, Schema("Resource tokens.")] = None
    kv_quota: Annotated[KvQuota | None, Schema("KV-token-seconds.")] = None
    limits: Annotated[TenantLimits, Schema("Of requests.")] = field(default_factory=TenantLimits)
    debt_cap_tokens: Annotated[
        int, count("How far a running reply may overdraw the bucket.", least=0, most=_MOST_TOKENS)
    ] = 0
    weight: Annotated[float, more_than_zero("Share under contention.", most=1000)] = 1.0
    request_class: Annotated[RequestClass, Schema("Interactive requests go before batch.")] = (
        RequestClass.INTERACTIVE
    )
    models: Annotated[
        tuple[str, ...] | None,
        Schema("Served names that it may use; left out: all.", min_items=1, max_items=256, unique=True),
    ] = None
    trust_group: Annotated[
        str | None, object_name("Tenants of one group share cached prefixes; left out: this tenant alone.")
    ] = None
    on_store_loss: Annotated[
        OnStoreLoss, Schema("While the quota store is lost: admit a share of the rate, or refuse.")
    ] = OnStoreLoss.OPEN
    allowed_namespaces: Annotated[
        tuple[str, ...],
        Schema("Namespaces whose TenantKeys are honoured.", max_items=256, unique=True),
    ] = ()

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.debtCapTokens == 0 || has(self.quota)",
            "debtCapTokens needs a quota to overdraw: set quota, or leave debtCapTokens at 0",
            ".debtCapTokens",
        ),
    )


@dataclass(frozen=True, slots=True)
class TenantStatus:
    """What became of a Tenant."""

    observed_generation: Annotated[int | None, Schema("Of the spec that this status tells of.")] = None
    keys: Annotated[int | None, Schema("TenantKeys that hold a key.", minimum=0)] = None
    conditions: Annotated[tuple[ConditionObject, ...], Schema("Ready.", max_items=8, key="type")] = ()


@dataclass(frozen=True, slots=True)
class TenantKeySpec:
    """A key that is asked for."""

    tenant: Annotated[
        str,
        Schema(
            "Name of the Tenant.",
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            rules=(fixed("tenant", "make a new TenantKey for another Tenant"),),
        ),
    ]
    secret_name: Annotated[
        str,
        Schema(
            "Secret of this namespace that gets the key, as `key`.",
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            rules=(fixed("secretName", "make a new TenantKey for another Secret"),),
        ),
    ]
    rotation: Annotated[int, count("Raise it by one for a new key.", least=0, most=1_000_000)] = 0
    overlap_seconds: Annotated[
        int, count("How long the old key works beside the new one.", least=0, most=2_592_000)
    ] = 3600
    revoked: Annotated[bool, Schema("True: the key is refused from then on.")] = False

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.rotation >= oldSelf.rotation",
            "rotation only goes up: raise it by one for a new key",
            ".rotation",
        ),
        Rule(
            "self.revoked || !oldSelf.revoked",
            "revoked cannot be taken back: make a new TenantKey",
            ".revoked",
        ),
    )


@dataclass(frozen=True, slots=True)
class TenantKeyStatus:
    """What became of a TenantKey. The key itself is in the Secret alone."""

    observed_generation: Annotated[int | None, Schema("Of the spec that this status tells of.")] = None
    key_id: Annotated[str | None, text("Public part of the key.", most=32)] = None
    rotation: Annotated[int | None, Schema("Rotation that the key is of.", minimum=0)] = None
    conditions: Annotated[tuple[ConditionObject, ...], Schema("Ready.", max_items=8, key="type")] = ()
