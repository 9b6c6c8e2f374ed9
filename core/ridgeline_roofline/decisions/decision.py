"""A threshold with its derivation: what every decision function returns."""

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """`derivation` is one sentence with the numbers that led to `value`."""

    value: T
    derivation: str
