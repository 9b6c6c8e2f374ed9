"""Options that the tenant commands share, and what they mean in the admin API's words."""

from pathlib import Path
from typing import Annotated, Any

import typer
from ridgeline_contracts.errors import SettingsError

AdminUrl = Annotated[
    str | None,
    typer.Option(help="Of a gateway's admin port, instead of a ready file; key: RIDGELINE_ADMIN_KEY."),
]
AdminKeyFile = Annotated[Path | None, typer.Option(help="File with the admin key, for --admin-url.")]
ReadyFile = Annotated[
    Path | None, typer.Option(help="As `ridgeline up` wrote it. [default: that of the data folder]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
TenantId = Annotated[str, typer.Argument(help="1 to 63 lower-case letters, digits and inner hyphens.")]

Name = Annotated[str | None, typer.Option(help="For people.")]
Models = Annotated[
    list[str] | None, typer.Option("--model", help="One that it may use; repeat it. `all`: all.")
]
Weight = Annotated[float | None, typer.Option(help="Share under contention, relative to other tenants.")]
Class = Annotated[str | None, typer.Option("--class", help="interactive or batch.")]
Quota = Annotated[
    str | None,
    typer.Option(help="RATE,BURST in resource tokens a second and in all, or `none` for unlimited."),
]
KvQuota = Annotated[
    str | None, typer.Option(help="RATE,BURST in KV tokens held and KV-token-seconds, or `none`.")
]
MaxConcurrent = Annotated[int | None, typer.Option(help="Requests at once; 0: unlimited.")]
DebtCap = Annotated[
    float | None, typer.Option(help="Resource tokens that a running reply may owe beyond the bucket.")
]
OnStoreLoss = Annotated[
    str | None,
    typer.Option(help="While the shared store is lost: open (a share of the rate) or closed (503)."),
]
TrustGroup = Annotated[
    str | None, typer.Option(help="Tenants of one group share cached prefixes; `none`: alone.")
]
MaxContext = Annotated[int | None, typer.Option(help="Tokens of prompt and reply together; 0: the model's.")]
MaxOutput = Annotated[int | None, typer.Option(help="Tokens of one reply; 0: the model's.")]


def limits_of(text: str | None, *, names: tuple[str, str], param: str) -> dict[str, float] | None:
    """`RATE,BURST` as an object with these two names; `none`: None. Raises SettingsError for other text."""
    if text == "none" or text is None:
        return None
    try:
        rate, burst = (float(part) for part in text.split(","))
    except ValueError as error:
        raise SettingsError(
            f"--{param} {text!r} is not RATE,BURST: give two numbers, such as 1000,100000", param=param
        ) from error
    return {names[0]: rate, names[1]: burst}


def tenant_fields(
    *,
    name: str | None,
    models: list[str] | None,
    weight: float | None,
    tenant_class: str | None,
    quota: str | None,
    kv_quota: str | None,
    max_concurrent: int | None,
    debt_cap: float | None,
    on_store_loss: str | None,
    trust_group: str | None,
    max_context: int | None,
    max_output: int | None,
) -> dict[str, Any]:
    """The given options as fields of the admin API; what was not given is not in it."""
    fields: dict[str, Any] = {
        "name": name,
        "weight": weight,
        "class": tenant_class,
        "debt_cap_tokens": debt_cap,
        "on_store_loss": on_store_loss,
    }
    given = {field: value for field, value in fields.items() if value is not None}
    if models is not None:
        given["models"] = None if "all" in models else models
    if quota is not None:
        given["quota"] = limits_of(quota, names=("rate_tokens_per_s", "burst_tokens"), param="quota")
    if kv_quota is not None:
        given["kv_quota"] = limits_of(
            kv_quota, names=("rate_token_s_per_s", "burst_token_s"), param="kv-quota"
        )
    if trust_group is not None:
        given["trust_group"] = None if trust_group == "none" else trust_group
    for field, value in (
        ("max_concurrent_requests", max_concurrent),
        ("max_context_tokens", max_context),
        ("max_output_tokens", max_output),
    ):
        if value is not None:
            given[field] = value or None
    return given
