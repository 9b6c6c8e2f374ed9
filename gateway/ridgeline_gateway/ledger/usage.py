"""From ledger records to usage and bills. Pure: anybody with the records and the price versions gets the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.ids import ModelName

from ridgeline_gateway.ledger.record import LedgerRecord
from ridgeline_gateway.prices.price import Price, unit_price
from ridgeline_gateway.quota.limits import MICRO, UNIT

_PICO = 10**12


@dataclass(slots=True)
class UsageLine:
    """Sums over the records of one model under one price version."""

    model: ModelName
    price_version: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    platform_tokens: int = 0
    kv_micro: int = 0
    charged_micro: int = 0
    recomputed_micro: int = 0
    """Counts times the version's weights: equal to what was charged, or the books are wrong."""
    usd_pico: int | None = None
    mismatched_requests: int = 0


def price_table(prices: Sequence[Price]) -> Mapping[tuple[ModelName, str], Price]:
    """By model and version."""
    return {(price.model, price.version): price for price in prices}


def usage_lines(
    records: Iterable[LedgerRecord], prices: Mapping[tuple[ModelName, str], Price]
) -> list[UsageLine]:
    """One line a model and price version, sorted by both. A record whose version is not known counts as mismatched."""
    lines: dict[tuple[ModelName, str], UsageLine] = {}
    for record in records:
        entry = record.entry
        key = (entry.model, entry.price_version)
        add_record(lines.setdefault(key, UsageLine(*key)), record, price_of(prices, *key))
    return [lines[key] for key in sorted(lines)]


def price_of(prices: Mapping[tuple[ModelName, str], Price], model: ModelName, version: str) -> Price | None:
    found = prices.get((model, version))
    unit = unit_price(model)
    return unit if found is None and version == unit.version else found


def add_record(line: UsageLine, record: LedgerRecord, price: Price | None) -> None:
    """Adds one record to its line."""
    entry = record.entry
    line.requests += 1
    line.prompt_tokens += entry.prompt_tokens
    line.cached_tokens += entry.cached_tokens
    line.output_tokens += entry.output_tokens
    line.platform_tokens += entry.platform_tokens
    line.kv_micro += entry.kv_micro
    line.charged_micro += record.charged_micro
    if price is None:
        line.mismatched_requests += 1
        return
    counts = {
        "prompt_tokens": entry.prompt_tokens,
        "cached_tokens": entry.cached_tokens,
        "output_tokens": entry.output_tokens,
    }
    recomputed = price.weights.of(**counts)
    line.recomputed_micro += recomputed
    line.mismatched_requests += recomputed != record.charged_micro
    if price.usd_pico is not None:
        line.usd_pico = (line.usd_pico or 0) + price.usd_pico.of(**counts)


def usage_object(lines: Sequence[UsageLine], *, start_s: int, end_s: int) -> dict[str, Any]:
    """What /v1/usage answers. Times are Unix seconds, charges resource tokens, KV token-seconds."""
    priced = [line.usd_pico for line in lines if line.usd_pico is not None]
    return {
        "object": "usage",
        "start_time": start_s,
        "end_time": end_s,
        "unit": UNIT,
        "data": [_line_object(line) for line in lines],
        "total": {
            "requests": sum(line.requests for line in lines),
            "charged": sum(line.charged_micro for line in lines) / MICRO,
            "usd": sum(priced) / _PICO if priced else None,
        },
    }


def _line_object(line: UsageLine) -> dict[str, Any]:
    return {
        "model": line.model,
        "price_version": line.price_version,
        "requests": line.requests,
        "prompt_tokens": line.prompt_tokens,
        "cached_tokens": line.cached_tokens,
        "output_tokens": line.output_tokens,
        "kv_token_seconds": line.kv_micro / MICRO,
        "charged": line.charged_micro / MICRO,
        "usd": None if line.usd_pico is None else line.usd_pico / _PICO,
    }


def audit_object(lines: Sequence[UsageLine]) -> dict[str, Any]:
    """What only operators see: the platform's own cost, and whether the bill can be redone from raw counts."""
    return {
        "platform_tokens": sum(line.platform_tokens for line in lines),
        "recomputed": sum(line.recomputed_micro for line in lines) / MICRO,
        "mismatched_requests": sum(line.mismatched_requests for line in lines),
    }
