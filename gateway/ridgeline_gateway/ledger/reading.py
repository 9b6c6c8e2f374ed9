"""Reads a tenant's ledger piece by piece and sums it up."""

from dataclasses import dataclass

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import ModelName, TenantId

from ridgeline_gateway.ledger.usage import UsageLine, add_record, price_of, price_table
from ridgeline_gateway.quota.store import AccountStore
from ridgeline_gateway.tenants import TenantStore

_PIECE = 1000
_DEFAULT_SPAN_S = 30 * 86_400
_LATEST_S = 2**40


@dataclass(frozen=True, slots=True)
class Period:
    """[start, end) in Unix seconds."""

    start_s: int
    end_s: int


def period_of(start: str | None, end: str | None, *, clock: Clock) -> Period:
    """From query parameters; what is left out: the last 30 days. Raises InvalidRequest."""
    now_s = int(clock.wall_ms() / 1000) + 1
    end_s = now_s if end is None else _seconds(end, param="end_time")
    start_s = end_s - _DEFAULT_SPAN_S if start is None else _seconds(start, param="start_time")
    if start_s >= end_s:
        raise InvalidRequest(f"start_time={start_s} is not before end_time={end_s}", param="start_time")
    return Period(max(0, start_s), end_s)


async def read_usage(
    tenant_id: TenantId, period: Period, *, accounts: AccountStore, tenants: TenantStore
) -> list[UsageLine]:
    """The lines of a period. Memory does not grow with its length. Raises StoreUnreachable."""
    prices = price_table(await tenants.prices())
    lines: dict[tuple[ModelName, str], UsageLine] = {}
    position: str | None = None
    while True:
        piece = await accounts.records(
            tenant_id,
            since_ms=period.start_s * 1000,
            until_ms=period.end_s * 1000,
            after=position,
            most=_PIECE,
        )
        for record in piece:
            key = (record.entry.model, record.entry.price_version)
            add_record(lines.setdefault(key, UsageLine(*key)), record, price_of(prices, *key))
        if len(piece) < _PIECE:
            return [lines[key] for key in sorted(lines)]
        position = piece[-1].position


def _seconds(text: str, *, param: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < _LATEST_S):
        raise InvalidRequest(f"{param}={text!r} is no time: give whole Unix seconds", param=param)
    return int(text)
