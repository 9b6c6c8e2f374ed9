"""Quantities as people write them (`8k`, `320GB`, `400Gb/s`, `30ms`) to SI base units and back.

Decimal prefixes are powers of 1000 (`k M G T`), binary ones of 1024 (`Ki Mi Gi Ti`); a small `b` is a bit. What
has a unit is never taken for something else: `tpot=30GB` is refused.
"""

import math
import re
from enum import StrEnum
from typing import Final

from ridgeline_contracts.errors import SettingsError


class Unit(StrEnum):
    """The unit that a value is held in. Byte, second, FLOP, watt and joule are SI base units here."""

    BYTES = "bytes"
    BYTES_PER_S = "bytes/s"
    BYTES_PER_TOKEN = "bytes/token"
    SECONDS = "s"
    FLOP = "FLOP"
    FLOP_PER_S = "FLOP/s"
    FLOP_PER_BYTE = "FLOP/byte"
    FLOP_PER_TOKEN = "FLOP/token"
    WATTS = "W"
    JOULES = "J"
    JOULES_PER_TOKEN = "J/token"
    TOKENS = "tokens"
    TOKENS_PER_S = "tokens/s"
    REQUESTS = "requests"
    REQUESTS_PER_S = "requests/s"
    SEQUENCES = "sequences"
    COUNT = "count"
    RATIO = "ratio"
    USD = "USD"
    USD_PER_S = "USD/s"
    USD_PER_TOKEN = "USD/token"
    USD_PER_REQUEST = "USD/request"
    PER_S = "1/s"
    TEXT = "text"
    """A word, not a number: the name of what was chosen."""


_DECIMAL: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY: Final = re.compile(r"^\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*?)\s*$")


def _byte_suffixes() -> dict[str, float]:
    prefixes = {**_DECIMAL, **_BINARY}
    return {f"{p}B": f for p, f in prefixes.items()} | {f"{p}b": f / 8 for p, f in prefixes.items() if p}


def _counted(*nouns: str) -> dict[str, float]:
    """`8k`, `8k tokens`, `8Ki`: plain numbers with a prefix, and perhaps the noun that they count."""
    prefixes = {**_DECIMAL, **_BINARY}
    return {f"{p}{noun}": f for p, f in prefixes.items() for noun in ("", *nouns, *(f" {n}" for n in nouns))}


def _rates(amounts: dict[str, float]) -> dict[str, float]:
    return {
        f"{name}/{t}": f / _TIME[t] for name, f in amounts.items() for t in ("s", "min", "h", "d") if name
    }


_SUFFIXES: Final[dict[Unit, dict[str, float]]] = {
    Unit.BYTES: _byte_suffixes(),
    Unit.BYTES_PER_S: _rates(_byte_suffixes()),
    Unit.SECONDS: _TIME,
    Unit.WATTS: {"W": 1.0, "kW": 1e3, "MW": 1e6},
    Unit.TOKENS: _counted("tokens", "token", "tok"),
    Unit.SEQUENCES: _counted("sequences", "sequence", "rows"),
    Unit.REQUESTS: _counted("requests", "request"),
    Unit.COUNT: _counted(),
    Unit.RATIO: {"": 1.0, "%": 0.01, "x": 1.0},
    Unit.TOKENS_PER_S: _rates(_counted("tokens", "tok")),
    Unit.REQUESTS_PER_S: {"": 1.0, "/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600, "/d": 1 / 86400, "rps": 1.0}
    | _rates(_counted("requests", "req")),
    Unit.FLOP_PER_S: {f"{p}FLOP/s": f for p, f in _DECIMAL.items()}
    | {f"{p}FLOPS": f for p, f in _DECIMAL.items()},
    Unit.USD: {"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6},
    Unit.USD_PER_S: {f"USD/{t}": 1 / f for t, f in _TIME.items()},
}
_EXAMPLES: Final[dict[Unit, str]] = {
    Unit.BYTES: "320GB or 40GiB",
    Unit.BYTES_PER_S: "400Gb/s or 50GB/s",
    Unit.SECONDS: "30ms or 1.5s",
    Unit.WATTS: "700W or 1kW",
    Unit.TOKENS: "8192 or 8k",
    Unit.RATIO: "0.4 or 40%",
    Unit.REQUESTS_PER_S: "12, 12/s or 3000/min",
    Unit.USD_PER_S: "2.5USD/h",
}


def parse_quantity(text: str, unit: Unit, *, name: str) -> float:
    """The value in `unit`. Raises SettingsError naming `name`, the text, and what would be understood."""
    found = _QUANTITY.match(text)
    if found is not None:
        factor = _SUFFIXES[unit].get(found[2])
        if factor is not None:
            return float(found[1]) * factor
    example = _EXAMPLES.get(unit, "a number, perhaps with k, M or G")
    raise SettingsError(f"{name}={text!r} is not in {unit.value}: give for example {example}", param=name)


def parse_count(text: str, unit: Unit, *, name: str, least: int = 1) -> int:
    """A whole number of at least `least`. Raises SettingsError as `parse_quantity` does."""
    value = parse_quantity(text, unit, name=name)
    if value != int(value) or value < least:
        raise SettingsError(f"{name}={text!r}: give a whole number of at least {least}", param=name)
    return int(value)


_SHOWN: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def show(value: float | str, unit: Unit) -> str:
    """For people: three to four digits and a prefix. `--json` carries the exact value instead."""
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "never" if unit is Unit.SECONDS else "no limit"
    if unit is Unit.SECONDS:
        return _show_time(value)
    if unit is Unit.RATIO:
        return f"{value:.4g}"
    if unit is Unit.USD_PER_TOKEN:
        return f"{value * 1e6:.4g} USD/Mtoken"
    if unit is Unit.USD_PER_S:
        return f"{value * 3600:.4g} USD/h"
    label = "" if unit is Unit.COUNT else f" {unit.value}"
    counts = unit in (Unit.COUNT, Unit.TOKENS, Unit.SEQUENCES, Unit.REQUESTS)
    if counts and abs(value) < 1e6:
        return f"{value:,.0f}{label}" if value == int(value) else f"{value:,.4g}{label}"
    for factor, prefix in _SHOWN:
        if abs(value) >= factor:
            return f"{value / factor:.4g} {prefix}{label.strip().replace('bytes', 'B')}".rstrip()
    return f"{value:.4g}{label}"


def _show_time(seconds: float) -> str:
    for factor, name in (
        (86400.0, "d"),
        (3600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "us"),
    ):
        if abs(seconds) >= factor * (1 if factor <= 1 else 2):
            return f"{seconds / factor:.4g} {name}"
    return f"{seconds * 1e9:.4g} ns" if seconds else "0 s"
