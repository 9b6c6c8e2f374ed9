"""Tenants and keys as lines for people. Pure."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any


def tenants_table(tenants: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a tenant, under a head."""
    rows = [("tenant", "class", "weight", "models", "quota left")]
    for tenant in tenants:
        rows.append(
            (
                str(tenant["id"]),
                str(tenant["class"]),
                f"{tenant['weight']:g}",
                "all" if tenant["models"] is None else ",".join(tenant["models"]),
                _left(tenant["standing"]),
            )
        )
    return _aligned(rows)


def tenant_lines(tenant: Mapping[str, Any]) -> list[str]:
    """All that is known of one tenant."""
    quota, kv_quota = tenant["quota"], tenant["kv_quota"]
    model = "as the model's"
    lines = [
        f"tenant      {tenant['id']} ({tenant['name']}), {tenant['class']}, weight {tenant['weight']:g}",
        f"models      {'all' if tenant['models'] is None else ', '.join(tenant['models'])}",
        "quota       unlimited"
        if quota is None
        else f"quota       {quota['rate_tokens_per_s']:g} resource tokens/s, at most {quota['burst_tokens']:g}",
        f"left        {_left(tenant['standing'])}",
        f"KV          {'unlimited' if kv_quota is None else _kv(kv_quota)}",
        f"at once     {tenant['max_concurrent_requests'] or 'unlimited'} requests",
        f"debt cap    {tenant['debt_cap_tokens']:g} resource tokens",
        f"lost store  {tenant['on_store_loss']}",
        f"limits      context {tenant['max_context_tokens'] or model}, output {tenant['max_output_tokens'] or model}",
        f"trust group {tenant['trust_group'] or 'none'}",
    ]
    lines += [f"key         {_key(key)}" for key in tenant.get("keys", ())]
    return [*lines, *(line for price in tenant.get("prices", ()) for line in price_lines(price))]


def price_lines(price: Mapping[str, Any]) -> list[str]:
    """A price version and where it comes from."""
    weights, usd = price["weights"], price.get("usd_per_million")
    bill = "not billed" if usd is None else "USD a million " + _rates(usd)
    return [
        f"price       {price['model']} {price.get('version', 'new')}: resource tokens {_rates(weights)}; {bill}",
        f"            {price.get('derivation', 'typed in')}",
    ]


def usage_table(usage: Mapping[str, Any]) -> list[str]:
    """One line a model and price version, the total, and whether the books agree."""
    head = ("model", "price", "requests", "prompt", "cached", "output", "charged", "USD")
    names = ("requests", "prompt_tokens", "cached_tokens", "output_tokens")
    rows = [head]
    for line in usage["data"]:
        counts = [f"{line[name]:,}" for name in names]
        rows.append(
            (line["model"], line["price_version"], *counts, f"{line['charged']:,.3f}", _usd(line["usd"]))
        )
    total = usage["total"]
    rows.append(
        ("total", "", f"{total['requests']:,}", "", "", "", f"{total['charged']:,.3f}", _usd(total["usd"]))
    )
    audit = usage["audit"]
    wrong = audit["mismatched_requests"]
    agrees = (
        "the bill can be redone from the counts" if not wrong else f"{wrong} requests do NOT fit their counts"
    )
    return [*_aligned(rows), f"platform's own cost: {audit['platform_tokens']:,} tokens; {agrees}"]


def key_line(key: Mapping[str, Any]) -> str:
    """A new key, with the one hint that matters."""
    return f"key         {key['key']}  (shown this once: keep it now)"


def _left(standing: Mapping[str, Any] | None) -> str:
    if standing is None:
        return "unlimited"
    reserved = standing["reserved_tokens"]
    held = f", {reserved:,.0f} reserved" if reserved else ""
    return f"{standing['remaining_tokens']:,.0f} of {standing['limit_tokens']:,.0f}{held}"


def _kv(quota: Mapping[str, Any]) -> str:
    return (
        f"{quota['rate_token_s_per_s']:g} tokens on average, at most {quota['burst_token_s']:g} token-seconds"
    )


def _key(key: Mapping[str, Any]) -> str:
    if key["revoked_ms"] is not None:
        state = f"revoked {_when(key['revoked_ms'])}"
    elif key["expires_ms"] is not None:
        state = f"{'works until' if key['works'] else 'expired'} {_when(key['expires_ms'])}"
    else:
        state = "works"
    return f"{key['id']}  made {_when(key['created_ms'])}, {state}"


def _when(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _rates(rates: Mapping[str, float]) -> str:
    return f"prompt {rates['prompt']:g}, cached {rates['cached']:g}, output {rates['output']:g}"


def _usd(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
