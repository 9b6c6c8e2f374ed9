"""A tenant's standing as response headers. Pure."""

from ridgeline_gateway.quota.limits import MICRO, UNIT
from ridgeline_gateway.quota.steps import Standing


def quota_headers(standing: Standing) -> dict[str, str]:
    """`x-ratelimit-*`: tokens in whole resource tokens, rounded down, a debt below zero; requests at once; KV in
    whole KV-token-seconds. Nothing for what has no limit."""
    headers: dict[str, str] = {}
    buckets = (
        ("tokens", standing.limit_micro, standing.remaining_micro, standing.reset_ms),
        ("kv-token-seconds", standing.kv_limit_micro, standing.kv_remaining_micro, standing.kv_reset_ms),
    )
    for name, limit, remaining, reset_ms in buckets:
        if limit is not None and remaining is not None and reset_ms is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(limit // MICRO)
            headers[f"x-ratelimit-remaining-{name}"] = str(remaining // MICRO)
            headers[f"x-ratelimit-reset-{name}"] = f"{reset_ms}ms"
    if standing.limit_micro is not None:
        headers["x-ratelimit-unit"] = UNIT
    if standing.max_concurrent is not None:
        left = max(0, standing.max_concurrent - standing.open_requests)
        headers["x-ratelimit-limit-requests"] = str(standing.max_concurrent)
        headers["x-ratelimit-remaining-requests"] = str(left)
        headers["x-ratelimit-requests-unit"] = "at-once"
    return headers
