"""`ridgeline tenant usage` and `ridgeline tenant price`: what was used, and what it counts for."""

from typing import Annotated, Any

import typer
from ridgeline_contracts.errors import SettingsError

from ridgeline_cli.context import context_of
from ridgeline_cli.plan.command import find_gpu
from ridgeline_cli.tenant import options as opt
from ridgeline_cli.tenant.derivation import derive_price, typed_rates
from ridgeline_cli.tenant.rendering import price_lines, usage_table
from ridgeline_cli.tenant.session import admin_of, print_found, seconds_of

_Since = Annotated[str, typer.Option(help="How far back: 90s, 10m, 24h, 30d.")]
_Weights = Annotated[str | None, typer.Option(help="PROMPT,CACHED,OUTPUT in resource tokens, typed in.")]
_Usd = Annotated[str | None, typer.Option(help="PROMPT,CACHED,OUTPUT in USD a million tokens, typed in.")]
_Of = Annotated[
    str | None, typer.Option("--of", help="Derive: id of the catalogue, or a folder with a config.json.")
]
_Reference = Annotated[
    str | None, typer.Option(help="Whose prompt token is one resource token. [default: the model itself]")
]
_Input = Annotated[
    list[str] | None, typer.Option("--set", help="Input of `ridgeline plan price` as NAME=VALUE; repeat it.")
]
_Gpu = Annotated[str, typer.Option(help="Reference GPU: id of the catalogue, or `this` machine.")]


def usage(
    ctx: typer.Context,
    tenant: opt.TenantId,
    since: _Since = "30d",
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """What a tenant used and was charged, and whether its bill can be redone from the raw counts."""
    now_s = int(context_of(ctx).clock.wall_ms() / 1000) + 1
    start_s = now_s - int(seconds_of(since, param="since"))
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        found = api.get(f"/admin/tenants/{tenant}/usage", start_time=start_s, end_time=now_s)
    print_found(found, usage_table(found), as_json=as_json)


def price(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="As it is served.")],
    weights: _Weights = None,
    usd: _Usd = None,
    of: _Of = None,
    gpu: _Gpu = "h100-sxm",
    reference: _Reference = None,
    inputs: _Input = None,
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Keep it as a new version, which counts from now on.")
    ] = False,
    version: Annotated[str | None, typer.Option(help="Name of the version. [default: v1, v2, ...]")] = None,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show a model's price versions; derive one from the roofline (--of) or type it in (--weights); --freeze keeps it.

    Versions never change: requests are charged, and bills redone, at the version that held when they began.
    """
    wanted = None
    if of is not None and weights is not None:
        raise SettingsError("give --of to derive a price or --weights to type one in, not both", param="of")
    if of is not None:
        given = {"model": of, "gpu": gpu, **_inputs(inputs or [])}
        context = context_of(ctx)
        derived = derive_price(
            given, reference_model=reference, find_gpu=lambda name: find_gpu(name, context)
        )
        wanted = derived.body(model, version)
    elif weights is not None:
        wanted = {"model": model, "weights": typed_rates(weights, param="weights")}
        wanted |= {} if version is None else {"version": version}
    if wanted is not None and usd is not None:
        wanted["usd_per_million"] = typed_rates(usd, param="usd")
    if freeze and wanted is None:
        raise SettingsError("nothing to freeze: give --of MODEL or --weights P,C,O", param="freeze")
    if wanted is not None and not freeze:
        print_found(wanted, [*price_lines(wanted), "not kept: add --freeze to keep it"], as_json=as_json)
        return
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        if wanted is not None:
            found = api.send("POST", "/admin/prices", wanted)
            print_found(found, price_lines(found), as_json=as_json)
            return
        versions = [each for each in api.get("/admin/prices")["prices"] if each["model"] == model]
    lines = [line for each in versions for line in price_lines(each)]
    print_found(
        {"prices": versions},
        lines or [f"no version of {model} is frozen: every token weighs one"],
        as_json=as_json,
    )


def _inputs(texts: list[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set {text!r} is not NAME=VALUE", param="set")
        found[name] = value
    return found
