"""The `ridgeline tenant` commands: arguments in, calls of the admin API, text or JSON out."""

from datetime import timedelta
from typing import Annotated

import typer
from ridgeline_contracts.errors import Conflict, NotFound, SettingsError

from ridgeline_cli.tenant import options as opt
from ridgeline_cli.tenant.admin_api import AdminApi
from ridgeline_cli.tenant.books import price, usage
from ridgeline_cli.tenant.rendering import key_line, tenant_lines, tenants_table
from ridgeline_cli.tenant.session import admin_of, print_found, seconds_of

app = typer.Typer(
    no_args_is_help=True,
    help="Tenants, their keys and quotas on a running platform.\n\n"
    "Finds the platform that `ridgeline up` started; for another give --admin-url and RIDGELINE_ADMIN_KEY.",
)
app.command()(usage)
app.command()(price)
_Overlap = Annotated[str, typer.Option(help="How long the other keys go on working: 90s, 10m, 24h, 7d.")]
_Ttl = Annotated[str | None, typer.Option(help="How long the key works: 12h, 30d. [default: until revoked]")]
_KeyId = Annotated[str, typer.Argument(help="Of the key rl-<id>-<secret>: only the id.")]


@app.command()
def create(
    ctx: typer.Context,
    tenant: opt.TenantId,
    name: opt.Name = None,
    model: opt.Models = None,
    weight: opt.Weight = None,
    tenant_class: opt.Class = None,
    quota: opt.Quota = None,
    kv_quota: opt.KvQuota = None,
    max_concurrent: opt.MaxConcurrent = None,
    debt_cap: opt.DebtCap = None,
    on_store_loss: opt.OnStoreLoss = None,
    trust_group: opt.TrustGroup = None,
    max_context: opt.MaxContext = None,
    max_output: opt.MaxOutput = None,
    ttl: _Ttl = None,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Make a tenant with one key. The key is shown this once."""
    fields = opt.tenant_fields(
        name=name, models=model, weight=weight, tenant_class=tenant_class, quota=quota, kv_quota=kv_quota,
        max_concurrent=max_concurrent, debt_cap=debt_cap, on_store_loss=on_store_loss,
        trust_group=trust_group, max_context=max_context, max_output=max_output,
    )  # fmt: skip
    ttl_body = {} if ttl is None else {"ttl_s": seconds_of(ttl, param="ttl")}
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        if _exists(api, tenant):
            raise Conflict(f"there is a tenant {tenant!r} already: change it with `ridgeline tenant set`")
        made = api.send("PUT", f"/admin/tenants/{tenant}", fields)
        key = api.send("POST", f"/admin/tenants/{tenant}/keys", ttl_body)
    print_found({**made, "key": key["key"]}, [*tenant_lines(made), key_line(key)], as_json=as_json)


@app.command("list")
def list_tenants(
    ctx: typer.Context,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """All tenants, with what is left of their quotas."""
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        found = api.get("/admin/tenants")
    print_found(found, tenants_table(found["tenants"]), as_json=as_json)


@app.command()
def show(
    ctx: typer.Context,
    tenant: opt.TenantId,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """One tenant: limits, what is left, keys, and the prices that hold with their derivation."""
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        found = api.get(f"/admin/tenants/{tenant}")
    print_found(found, tenant_lines(found), as_json=as_json)


@app.command("set")
def set_fields(
    ctx: typer.Context,
    tenant: opt.TenantId,
    name: opt.Name = None,
    model: opt.Models = None,
    weight: opt.Weight = None,
    tenant_class: opt.Class = None,
    quota: opt.Quota = None,
    kv_quota: opt.KvQuota = None,
    max_concurrent: opt.MaxConcurrent = None,
    debt_cap: opt.DebtCap = None,
    on_store_loss: opt.OnStoreLoss = None,
    trust_group: opt.TrustGroup = None,
    max_context: opt.MaxContext = None,
    max_output: opt.MaxOutput = None,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """Change what is given, leave the rest as it is. It counts for requests that come from now on."""
    fields = opt.tenant_fields(
        name=name, models=model, weight=weight, tenant_class=tenant_class, quota=quota, kv_quota=kv_quota,
        max_concurrent=max_concurrent, debt_cap=debt_cap, on_store_loss=on_store_loss,
        trust_group=trust_group, max_context=max_context, max_output=max_output,
    )  # fmt: skip
    if not fields:
        raise SettingsError("nothing to change: give an option, such as --weight 2 or --quota 1000,100000")
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        found = api.send("PATCH", f"/admin/tenants/{tenant}", fields)
    print_found(found, tenant_lines(found), as_json=as_json)


@app.command()
def rotate(
    ctx: typer.Context,
    tenant: opt.TenantId,
    overlap: _Overlap = "24h",
    ttl: _Ttl = None,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """A new key, shown this once; the tenant's other keys end after the overlap."""
    body = {"overlap_s": seconds_of(overlap, param="overlap")}
    if ttl is not None:
        body["ttl_s"] = seconds_of(ttl, param="ttl")
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        key = api.send("POST", f"/admin/tenants/{tenant}/keys/rotate", body)
    ends = f"the other keys end in {timedelta(seconds=body['overlap_s'])}"
    print_found(key, [key_line(key), ends], as_json=as_json)


@app.command()
def revoke(
    ctx: typer.Context,
    key: _KeyId,
    admin_url: opt.AdminUrl = None,
    admin_key_file: opt.AdminKeyFile = None,
    ready_file: opt.ReadyFile = None,
    as_json: opt.AsJson = False,
) -> None:
    """End a key now; every gateway knows within two seconds."""
    if key.startswith("rl-"):
        raise SettingsError(
            "give the key's id alone, not the whole key, which other users of this machine could see: "
            "`ridgeline tenant show` lists ids",
            param="key",
        )
    with admin_of(ctx, admin_url, admin_key_file, ready_file) as api:
        api.send("DELETE", f"/admin/keys/{key}")
    print_found({"id": key, "revoked": True}, [f"key {key} is revoked"], as_json=as_json)


def _exists(api: AdminApi, tenant: str) -> bool:
    try:
        api.get(f"/admin/tenants/{tenant}")
    except NotFound:
        return False
    return True
