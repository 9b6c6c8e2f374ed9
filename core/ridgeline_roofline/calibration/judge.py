"""Predicted against measured, cell by cell: what counts is only what the fit has not seen."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ridgeline_roofline.calibration.grid import Cell

MEDIAN_LIMIT_RATIO: Final = 0.10
WORST_LIMIT_RATIO: Final = 0.25


@dataclass(frozen=True, slots=True)
class CellResult:
    cell: Cell
    measured_ms: float
    spread_ratio: float
    """(median - lowest) / lowest of the repeats: how restless the machine was."""
    predicted_ms: float
    linear_ms: float
    """By the five coefficients that travel in a load report."""

    @property
    def error_ratio(self) -> float:
        """Signed: above 0, the model says too much."""
        return self.predicted_ms / self.measured_ms - 1.0

    @property
    def linear_error_ratio(self) -> float:
        return self.linear_ms / self.measured_ms - 1.0


@dataclass(frozen=True, slots=True)
class Errors:
    """Of absolute relative errors."""

    cells: int
    median_ratio: float
    worst_ratio: float

    @property
    def holds(self) -> bool:
        return self.median_ratio <= MEDIAN_LIMIT_RATIO and self.worst_ratio <= WORST_LIMIT_RATIO


def judged_errors(results: Sequence[CellResult]) -> Errors:
    """Of the cells that were left out of the fit."""
    return errors_of(result.error_ratio for result in results if result.cell.is_judged)


def linear_errors(results: Sequence[CellResult]) -> Errors:
    """The same cells by the linear coefficients, which no limit holds for."""
    return errors_of(result.linear_error_ratio for result in results if result.cell.is_judged)


def errors_of(ratios: Iterable[float]) -> Errors:
    """At least one."""
    found = [abs(ratio) for ratio in ratios]
    return Errors(len(found), median(found), max(found))


def breaks(
    results: Sequence[CellResult], *, beyond_ratio: float = WORST_LIMIT_RATIO
) -> tuple[CellResult, ...]:
    """Where the model is further off than that, fitted cells too: worst first."""
    found = [result for result in results if abs(result.error_ratio) > beyond_ratio]
    return tuple(sorted(found, key=lambda result: -abs(result.error_ratio)))
