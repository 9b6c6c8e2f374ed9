"""What a step's duration is made of: amounts of work, one price each, so that few numbers cover the whole grid.

    step            1                        planning, hand-over, the fixed part of sampling
    row             sampled rows             the output matrix's row, sampling
    token           tokens                   norms, rotations, activations
    linear          measured ms of all linear layers at that many rows (between two, on the straight line)
    decode pair     batch x context          attention of rows that decode: their KV is read once
    prefill pair    chunk x context + chunk^2 / 2    attention of a chunk: its keys stay in the cache
    chunk context   context, if there is a chunk     the chunk's own KV, read once

The linear layers' term carries the roofline: flat while memory is the limit, a slope once arithmetic is.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.step import StepCoefficients

from ridgeline_roofline.calibration.fit import fit_prices, predict
from ridgeline_roofline.calibration.grid import Cell


@dataclass(frozen=True, slots=True)
class RowCurve:
    """Milliseconds over rows, measured at some, ascending; at least two. Straight between and beyond them."""

    rows: tuple[int, ...]
    durations_ms: tuple[float, ...]

    def __post_init__(self) -> None:
        if (
            len(self.rows) < 2
            or len(self.rows) != len(self.durations_ms)
            or sorted(self.rows) != [*self.rows]
        ):
            raise InvariantError(f"a curve needs ascending rows with a duration each: {self.rows}")

    def at_ms(self, rows: float) -> float:
        """Below the first: as at the first, since weights are read in any case."""
        if rows <= self.rows[0]:
            return self.durations_ms[0]
        right = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        share = (rows - self.rows[left]) / (self.rows[right] - self.rows[left])
        return self.durations_ms[left] + share * (self.durations_ms[right] - self.durations_ms[left])


@dataclass(frozen=True, slots=True)
class CalibratedModel:
    """Prices in ms by term. `linear` is a ratio: the step's linear layers over the same matrices alone."""

    prices: Mapping[str, float]
    linear: RowCurve

    def predict_ms(self, cell: Cell) -> float:
        return predict(cell_amounts(cell, self.linear), self.prices)

    def parts_ms(self, cell: Cell) -> dict[str, float]:
        """By term; they add up to the prediction."""
        return {name: value * self.prices[name] for name, value in cell_amounts(cell, self.linear).items()}


def cell_amounts(cell: Cell, linear: RowCurve) -> dict[str, float]:
    """Of one step, by term."""
    shape = cell.shape
    return {
        "step": 1.0,
        "row": float(cell.sampled_rows),
        "token": float(cell.tokens),
        "linear": linear.at_ms(cell.tokens),
        "decode pair": float(shape.context_tokens),
        "prefill pair": float(shape.prefill_context_tokens),
        "chunk context": float(cell.context_tokens if cell.chunk_tokens else 0),
    }


def wire_amounts(cell: Cell) -> dict[str, float]:
    """The terms of the contracts' linear form."""
    shape = cell.shape
    return {
        "base_ms": 1.0,
        "per_row_ms": float(shape.decode_rows),
        "per_context_token_ms": float(shape.context_tokens),
        "per_prefill_token_ms": float(shape.prefill_tokens),
        "per_prefill_context_ms": float(shape.prefill_context_tokens),
    }


def fit_model(cells: Sequence[Cell], durations_ms: Sequence[float], linear: RowCurve) -> CalibratedModel:
    """To these cells alone: pass those that are not judged."""
    return CalibratedModel(fit_prices([cell_amounts(cell, linear) for cell in cells], durations_ms), linear)


def fit_wire(cells: Sequence[Cell], durations_ms: Sequence[float]) -> StepCoefficients:
    """The five coefficients of a load report, to the same cells."""
    return StepCoefficients(**fit_prices([wire_amounts(cell) for cell in cells], durations_ms))
