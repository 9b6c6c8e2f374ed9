"""Entries as a gateway makes them, and records as a ledger keeps them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline_contracts.ids import ModelName, RequestId


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What one request used: raw counts. No price but its version, no text."""

    request_id: RequestId
    model: ModelName
    price_version: str
    prompt_tokens: int
    cached_tokens: int
    """Part of the prompt."""
    output_tokens: int
    """Up to the one that completed the stop, or up to the cancel."""
    kv_micro: int
    """Micro KV-token-seconds."""
    platform_tokens: int
    """Made but not charged: retries, overshoot, rejected drafts, recomputation. The platform's cost."""
    attempts: int
    outcome: str
    """ok or a code of the error tree."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """An entry with what the store made of it. Never changed once written."""

    position: str
    """Of the record in its tenant's ledger: pass the last one on to read further."""
    lease_id: str
    settled_us: int
    """On the store's clock, Unix microseconds."""
    late: bool
    """The lease had run out: the charge was taken at the settlement."""
    reserved_micro: int
    charged_micro: int
    refunded_micro: int
    kv_charged_micro: int
    grants: tuple[tuple[int, int], ...]
    """(time in us, micro-tokens): when the bucket gave what."""
    entry: LedgerEntry


def read_entry(text: str) -> LedgerEntry:
    """Fields that a later version added are left out."""
    held: Mapping[str, Any] = json.loads(text)
    return LedgerEntry(**{name: held[name] for name in LedgerEntry.__slots__})


def grants_text(grants: tuple[tuple[int, int], ...]) -> str:
    """`time,amount,time,amount`."""
    return ",".join(f"{at_us},{amount}" for at_us, amount in grants)


def read_grants(text: str) -> tuple[tuple[int, int], ...]:
    numbers = [int(word) for word in text.split(",")]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))
