"""Step coefficients fitted from measured steps: least squares, pulled to the first guess, never negative."""

from typing import Final

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.step import StepCoefficients, StepShape

_WINDOW_STEPS: Final = 512
_FIRST_FIT_STEPS: Final = 16
_REFIT_STEPS: Final = 64
_PRIOR_STEPS: Final = 1.0
"""The guess weighs as much as this many steps of typical size."""


class StepFit:
    """A bounded window of (shape, milliseconds) and the coefficients that explain it best."""

    def __init__(self, guess: StepCoefficients) -> None:
        self.coefficients = guess
        self._prior = _vector(guess)
        self._rows = np.zeros((_WINDOW_STEPS, len(self._prior)))
        self._durations_ms = np.zeros(_WINDOW_STEPS)
        self._seen = 0

    @property
    def steps_to_refit(self) -> int:
        """So many steps are still planned with the coefficients as they are."""
        if self._seen < _FIRST_FIT_STEPS:
            return _FIRST_FIT_STEPS - self._seen
        return _REFIT_STEPS - self._seen % _REFIT_STEPS

    def observe(self, shape: StepShape, duration_ms: float) -> None:
        """Adds a measured step. The coefficients move after the first 16, and after every 64."""
        index = self._seen % _WINDOW_STEPS
        self._rows[index] = _features(shape)
        self._durations_ms[index] = duration_ms
        self._seen += 1
        if self._seen == _FIRST_FIT_STEPS or self._seen % _REFIT_STEPS == 0:
            window = min(self._seen, _WINDOW_STEPS)
            self.coefficients = fit(self._rows[:window], self._durations_ms[:window], self._prior)


def fit(
    rows: npt.NDArray[np.float64], durations_ms: npt.NDArray[np.float64], prior: npt.NDArray[np.float64]
) -> StepCoefficients:
    """Ridge regression towards `prior` with coefficients >= 0. `rows` is [steps, 5], `durations_ms` [steps].

    Steps are weighted by 1 / duration, so that a long prefill does not drown the decode steps. Features are
    scaled to unit size, so that the pull is equal for each; one that never occurred keeps its prior.
    """
    weights = 1.0 / np.maximum(durations_ms, 1e-3)
    weights = weights / weights.mean()
    scale = np.sqrt((rows**2).mean(axis=0))
    scale[scale == 0.0] = 1.0
    matrix, pulled = rows / scale * weights[:, None], prior * scale
    gram = matrix.T @ matrix + _PRIOR_STEPS * np.eye(len(prior))
    moment = matrix.T @ (durations_ms * weights) + _PRIOR_STEPS * pulled
    free = np.ones(len(prior), dtype=np.bool_)
    solved = np.zeros(len(prior))
    # Each round fixes at least one negative coefficient at zero: at most five rounds.
    while free.any():
        solved[:] = 0.0
        solved[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
        if (solved >= 0.0).all():
            break
        free &= solved > 0.0
    return StepCoefficients(*(float(value) for value in np.maximum(solved, 0.0) / scale))


def _vector(found: StepCoefficients) -> npt.NDArray[np.float64]:
    return np.array(
        [
            found.base_ms,
            found.per_row_ms,
            found.per_context_token_ms,
            found.per_prefill_token_ms,
            found.per_prefill_context_ms,
        ]
    )


def _features(shape: StepShape) -> tuple[float, ...]:
    return (
        1.0,
        shape.decode_rows,
        shape.context_tokens,
        shape.prefill_tokens,
        shape.prefill_context_tokens,
    )
