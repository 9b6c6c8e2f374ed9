"""Weights of 8 or 4 bits: a signed code each, and a scale for each output and group of input features.

int8 is symmetric. int4 has an offset for each group besides: 16 levels are too few to leave some of them empty.
Codes are rounded to nearest; scales and offsets are bf16.
"""

import math
from dataclasses import dataclass

import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor
from torch.nn import functional

GROUPS = (32, 64, 128)
_RANGES_TRIED = (1.0, 0.94, 0.88)
"""Shares of a group's range that the codes of int4 may span: of few levels it can pay to clip."""


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """Raises InvariantError for what there is no kernel for."""

    bits: int
    group: int
    """Neighbouring input features that share a scale."""

    def __post_init__(self) -> None:
        if self.bits not in (8, 4) or self.group not in GROUPS:
            raise InvariantError(
                f"weights of {self.bits} bits in groups of {self.group} are not known: "
                f"give 8 or 4 bits and a group of {', '.join(map(str, GROUPS))}"
            )

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    @property
    def has_offsets(self) -> bool:
        return self.bits == 4

    def padded(self, features: int) -> int:
        """Input features, filled up to whole groups."""
        return -(-features // self.group) * self.group


@dataclass(frozen=True, slots=True)
class Quantised:
    """A weight [out, in] in codes; input features past the last are zeros."""

    codes: Tensor
    """int8 [out, groups, group]."""
    scales: Tensor
    """bf16 [out, groups]; may be negative."""
    offsets: Tensor | None
    """bf16 [out, groups], of int4."""
    features: int

    def weight(self) -> Tensor:
        """What the codes stand for, fp32 [out, in]."""
        wide = _widened(self.codes, self.scales, self.offsets)
        return wide.flatten(1)[:, : self.features]


@dataclass(frozen=True, slots=True)
class RoundingError:
    """How far codes are from the weights they came from. Errors of several weights add up."""

    error_squares: float
    weight_squares: float

    @classmethod
    def of(cls, weight: Tensor, found: Quantised) -> "RoundingError":
        wide = weight.float()
        return cls(float((found.weight() - wide).square().sum()), float(wide.square().sum()))

    def __add__(self, other: "RoundingError") -> "RoundingError":
        return RoundingError(
            self.error_squares + other.error_squares, self.weight_squares + other.weight_squares
        )

    @property
    def ratio(self) -> float:
        """Root mean square of the error over that of the weights."""
        return math.sqrt(self.error_squares / self.weight_squares) if self.weight_squares else 0.0


_Coded = tuple[Tensor, Tensor, Tensor | None]
"""Codes [out, groups, group], scales and offsets [out, groups]."""


def quantise(weight: Tensor, quant: QuantFormat) -> Quantised:
    """Codes of weight [out, in], fp32 or bf16: for each group the one of a few scales with the least squared error."""
    out, features = weight.shape
    padded = functional.pad(weight.float(), (0, quant.padded(features) - features))
    grouped = padded.view(out, -1, quant.group)
    tried = _with_offsets(grouped) if quant.has_offsets else _symmetric(grouped)
    best, least = tried[0], _error(grouped, tried[0])
    for other in tried[1:]:
        error = _error(grouped, other)
        best, least = _chosen(error < least, other, best), torch.minimum(error, least)
    return Quantised(*best, features)


def _symmetric(grouped: Tensor) -> list[_Coded]:
    """int8: the largest weight of a group at code -128, by a scale of either sign, or at 127 of the same sign."""
    largest = grouped.gather(-1, grouped.abs().argmax(dim=-1, keepdim=True))
    return [_coded(grouped, largest / -128, None, bits=8), _coded(grouped, largest.abs() / 127, None, bits=8)]


def _with_offsets(grouped: Tensor) -> list[_Coded]:
    """int4: the codes spread evenly over the range of a group, or over a part of it."""
    low, high = grouped.amin(dim=-1, keepdim=True), grouped.amax(dim=-1, keepdim=True)
    middle, half = (low + high) / 2, (high - low) / 2
    # Codes run from -8 to 7: the middle of the range lies between -1 and 0.
    return [
        _coded(grouped, scale, middle + scale / 2, bits=4)
        for scale in (half * share * (2 / 15) for share in _RANGES_TRIED)
    ]


def _coded(grouped: Tensor, scale: Tensor, offset: Tensor | None, *, bits: int) -> _Coded:
    """scale and offset [out, groups, 1]."""
    lowest = -(1 << (bits - 1))
    scales = scale.bfloat16()
    offsets = None if offset is None else offset.bfloat16()
    divisor = scales.float()
    moved = grouped if offsets is None else grouped - offsets.float()
    codes = torch.where(divisor == 0, 0.0, moved / divisor).round_().clamp_(lowest, -lowest - 1)
    return codes.to(torch.int8), scales.squeeze(-1), None if offsets is None else offsets.squeeze(-1)


def _chosen(better: Tensor, one: _Coded, other: _Coded) -> _Coded:
    """By group: `one` where better [out, groups], else `other`."""
    codes = torch.where(better.unsqueeze(-1), one[0], other[0])
    scales = torch.where(better, one[1], other[1])
    if one[2] is None or other[2] is None:
        return codes, scales, None
    return codes, scales, torch.where(better, one[2], other[2])


def _widened(codes: Tensor, scales: Tensor, offsets: Tensor | None) -> Tensor:
    wide = codes.float() * scales.float().unsqueeze(-1)
    return wide if offsets is None else wide.add_(offsets.float().unsqueeze(-1))


def _error(grouped: Tensor, coded: _Coded) -> Tensor:
    """Sum of squares by group [out, groups]."""
    return _widened(*coded).sub_(grouped).square_().sum(dim=-1)
