"""Non-negative least squares on relative error: few terms, each a kind of work, each with a price.

Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23: terms enter one at a time while they lower the
error; one whose price would become negative leaves.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.errors import InvariantError

_ROUNDS_PER_TERM: Final = 10
_TOLERANCE: Final = 1e-10


def fit_prices(rows: Sequence[Mapping[str, float]], durations: Sequence[float]) -> dict[str, float]:
    """Prices >= 0 by term, so that the sum of amount x price is near each duration, relative to that duration.

    `rows` holds the amounts of one measurement each, all with the same terms; durations are above 0. A term that
    does not help is priced 0. Raises InvariantError for rows that do not fit together.
    """
    if not rows or len(rows) != len(durations) or min(durations) <= 0:
        raise InvariantError(f"{len(rows)} rows of amounts for {len(durations)} durations above 0")
    names = list(rows[0])
    weights = 1.0 / np.asarray(durations, dtype=np.float64)
    matrix = np.array([[row[name] for name in names] for row in rows], dtype=np.float64) * weights[:, None]
    scale = np.sqrt((matrix**2).sum(axis=0))
    scale[scale == 0.0] = 1.0
    solved = _non_negative(matrix / scale, np.ones(len(rows))) / scale
    return {name: float(price) for name, price in zip(names, solved, strict=True)}


def predict(amounts: Mapping[str, float], prices: Mapping[str, float]) -> float:
    """In the unit of the durations that the prices were fitted to."""
    return sum(amount * prices[name] for name, amount in amounts.items())


def _non_negative(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    terms = matrix.shape[1]
    solved = np.zeros(terms)
    used = np.zeros(terms, dtype=np.bool_)
    for _ in range(_ROUNDS_PER_TERM * terms):
        gain = matrix.T @ (target - matrix @ solved)
        gain[used] = -np.inf
        best = int(np.argmax(gain))
        if gain[best] <= _TOLERANCE:
            break
        used[best] = True
        solved = _settled(matrix, target, solved, used)
    return solved


def _settled(
    matrix: npt.NDArray[np.float64],
    target: npt.NDArray[np.float64],
    before: npt.NDArray[np.float64],
    used: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    """The best prices of the used terms; those that would be negative are taken out of `used`."""
    current = before
    while used.any():
        wanted = np.zeros_like(current)
        wanted[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        negative = used & (wanted <= 0.0)
        if not negative.any():
            return wanted
        # Only as far as the first price that reaches 0.
        step = float(np.min(current[negative] / np.maximum(current[negative] - wanted[negative], _TOLERANCE)))
        current = current + step * (wanted - current)
        used &= current > _TOLERANCE
        current = np.where(used, current, 0.0)
    return np.zeros_like(before)
