"""Price versions, as facts, and how they are kept. Pure."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline_contracts.errors import Conflict
from ridgeline_contracts.ids import ModelName

from ridgeline_gateway.quota.limits import MICRO

UNIT_VERSION = "unit-1"
LARGEST_WEIGHT_MICRO = 10**9
"""A thousand resource tokens a token: a context of millions of tokens still costs less than 2^53 micro-tokens."""


@dataclass(frozen=True, slots=True)
class TokenRates:
    """A number for each kind of token."""

    prompt: int
    cached: int
    output: int

    def of(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """`cached_tokens` are part of `prompt_tokens`."""
        uncached = prompt_tokens - cached_tokens
        return uncached * self.prompt + cached_tokens * self.cached + output_tokens * self.output


@dataclass(frozen=True, slots=True)
class Price:
    """One version of one model's price. It never changes: a new one gets a new version."""

    version: str
    model: ModelName
    weights: TokenRates
    """Micro resource tokens a token. One resource token is one uncached prompt token of the reference model."""
    usd_pico: TokenRates | None = None
    """Millionths of a millionth of a dollar a token. None: tokens are counted, not billed."""
    derivation: str = ""
    frozen_ms: int = 0
    """Unix milliseconds."""


def unit_price(model: ModelName) -> Price:
    """What holds until a version is frozen: every token weighs one."""
    return Price(
        UNIT_VERSION, model, TokenRates(MICRO, MICRO, MICRO), derivation="none frozen: every token weighs one"
    )


def price_document(price: Price) -> str:
    """One line of JSON."""
    return json.dumps(asdict(price), separators=(",", ":"))


def read_price(document: str) -> Price:
    held: dict[str, Any] = json.loads(document)
    usd = held["usd_pico"]
    return Price(
        version=held["version"],
        model=ModelName(held["model"]),
        weights=TokenRates(**held["weights"]),
        usd_pico=None if usd is None else TokenRates(**usd),
        derivation=held["derivation"],
        frozen_ms=held["frozen_ms"],
    )


def version_exists(price: Price) -> Conflict:
    """What a store answers to the same version twice."""
    return Conflict(
        f"model {price.model!r} has a price version {price.version!r} already, and versions never change: "
        "give the new one another name",
        param="version",
    )
