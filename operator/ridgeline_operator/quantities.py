"""Kubernetes quantities as numbers, and back in the form that the API server stores."""

import re
from fractions import Fraction
from typing import Final

from ridgeline_contracts.errors import InvalidRequest

_FORM = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d+)?")
_BINARY: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def quantity_value(text: str, *, field: str) -> Fraction:
    """The number that a quantity stands for. Raises InvalidRequest naming the field."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise InvalidRequest(f"{field}={text!r} is no quantity: give one such as 512Mi or 16Gi", param=field)
    number, suffix = Fraction(found[1]), found[2] or ""
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    exponent = int(suffix[1:]) if suffix[:1] in ("e", "E") and len(suffix) > 1 else _DECIMAL[suffix]
    return number * Fraction(10) ** exponent


def quantity_bytes(text: str, *, field: str) -> int:
    """Rounded up."""
    value = quantity_value(text, field=field)
    return -(-value.numerator // value.denominator)


def bytes_quantity(size_bytes: int) -> str:
    """With the largest binary suffix that leaves a whole number: what the API server would make of it."""
    for suffix, unit in reversed(_BINARY.items()):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{suffix}"
    return str(size_bytes)


def cores_quantity(text: str, *, field: str) -> str:
    """Whole cores, else thousandths: what the API server would make of it."""
    value = quantity_value(text, field=field) * 1000
    milli = -(-value.numerator // value.denominator)
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"
