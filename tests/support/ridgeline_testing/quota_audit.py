"""An auditor of quota that sees only ledger records and what the workers themselves counted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ridgeline_contracts.proto import worker_pb2
from ridgeline_gateway.ledger.record import LedgerRecord
from ridgeline_gateway.prices.price import Price
from ridgeline_gateway.quota.limits import QuotaLimits


@dataclass(frozen=True, slots=True)
class Audit:
    """`over_micro`: how much more than burst + rate x t + debt cap was admitted, over the worst interval."""

    records: int
    charged_micro: int
    over_micro: int
    wrong: list[str] = field(default_factory=list)
    """Records whose charge counts and price do not explain, one line each."""


def audit(
    records: Sequence[LedgerRecord],
    counted: Mapping[str, worker_pb2.Counts],
    price: Price,
    limits: QuotaLimits,
) -> Audit:
    """Every request once; whole replies and cancelled ones must agree with the workers' own counts."""
    wrong = []
    seen: set[str] = set()
    for record in records:
        if record.lease_id in seen:
            wrong.append(f"{record.lease_id} is ledgered twice")
        seen.add(record.lease_id)
        wrong += _faults(record, counted.get(record.lease_id), price)
    wrong += [f"{request_id} was worked on and is not ledgered" for request_id in sorted(set(counted) - seen)]
    return Audit(
        records=len(records),
        charged_micro=sum(record.charged_micro for record in records),
        over_micro=over_micro(records, limits),
        wrong=wrong,
    )


def over_micro(records: Sequence[LedgerRecord], limits: QuotaLimits) -> int:
    """The worst excess over all pairs of times, in one pass: the largest sum of charges less what flowed in."""
    bucket = limits.tokens
    assert bucket is not None
    charges: list[tuple[int, int]] = []
    for record in records:
        left = record.charged_micro
        for at_us, granted in record.grants:
            charges.append((at_us, min(left, granted)))
            left -= min(left, granted)
        charges.append((record.settled_us, left))
    charges.sort()
    allowed = (bucket.burst_micro + limits.debt_cap_micro) * 1_000_000
    worst, running, before_us = 0, 0, None
    for at_us, amount in charges:
        if before_us is not None:
            # An interval that begins here instead has nothing behind it.
            running = max(0, running - bucket.rate_micro_per_s * (at_us - before_us))
        running += amount * 1_000_000
        worst, before_us = max(worst, running), at_us
    return max(0, -(-(worst - allowed) // 1_000_000))


def _faults(record: LedgerRecord, counts: worker_pb2.Counts | None, price: Price) -> list[str]:
    entry, faults = record.entry, []
    expected = price.weights.of(
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=entry.cached_tokens,
        output_tokens=entry.output_tokens,
    )
    if expected != record.charged_micro:
        faults.append(f"{record.lease_id}: charged {record.charged_micro}, counts cost {expected}")
    # What a gateway granted by itself while the store was lost may be charged beyond the store's own lease.
    if record.refunded_micro > max(0, record.reserved_micro - record.charged_micro):
        faults.append(f"{record.lease_id}: refunded more than was left of what was reserved")
    if entry.outcome not in ("ok", "cancelled"):
        return faults
    told = (
        (0, 0, 0) if counts is None else (counts.prompt_tokens, counts.cached_tokens, counts.emitted_tokens)
    )
    found = (entry.prompt_tokens, entry.cached_tokens, entry.output_tokens)
    if entry.outcome == "cancelled" and entry.platform_tokens:
        # The bucket did not hold what the worker made after the client had gone: the platform's cost.
        found = (*found[:2], entry.output_tokens + entry.platform_tokens)
    if found != told:
        faults.append(f"{record.lease_id} ({entry.outcome}): ledger {found}, worker {told}")
    return faults
