"""Draws tokens row by row: for a CPU, where what a row keeps is soon few and stays in the cache.

The same choices as `draw_batch`, which a wide device needs.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

_SORTED = (256, 4096)
"""top-p looks at so many of the most likely tokens before it sorts the whole row."""

Floats32 = npt.NDArray[np.float32]
Floats64 = npt.NDArray[np.float64]


def draw_rows(logits: Tensor, best: Tensor, sampling: Sequence[SamplingParams], uniforms: Floats64) -> Tensor:
    """See `Draw`."""
    pairs = zip(logits.numpy(), best.numpy(), sampling, uniforms.tolist(), strict=True)
    return torch.tensor([_draw(row, largest, each, uniform) for row, largest, each, uniform in pairs])


def _draw(row: Floats32, best: Floats32, sampling: SamplingParams, uniform: float) -> int:
    if not np.isfinite(best[0]):
        return 0  # the row has a fault, and no right answer
    scaled = (row - best) / np.float32(sampling.divisor)
    ids = None
    if 0 < sampling.top_k < len(scaled):
        ids = np.flatnonzero(scaled >= np.partition(scaled, -sampling.top_k)[-sampling.top_k])
        scaled = scaled[ids]
    weights = _exp(scaled)
    if sampling.top_p < 1.0:
        inside = np.flatnonzero(scaled >= _boundary(scaled, sampling.top_p * weights.sum()))
        ids, weights = inside if ids is None else ids[inside], weights[inside]
    if sampling.min_p > 0.0:
        weights = np.where(weights >= sampling.min_p, weights, 0.0)
    cumulative = torch.from_numpy(weights).cumsum(0).numpy()
    chosen = np.searchsorted(cumulative, uniform * cumulative[-1], side="right")
    return int(chosen if ids is None else ids[chosen])


def _boundary(scaled: Floats32, wanted: float) -> np.float32:
    """The value at which the cumulative weight, from the largest on, reaches `wanted`."""
    for count in (*(count for count in _SORTED if count < len(scaled)), len(scaled)):
        some = scaled if count == len(scaled) else np.partition(scaled, -count)[-count:]
        ordered = np.sort(some)[::-1]
        reached = np.cumsum(_exp(ordered)) >= wanted
        if reached[-1]:
            return np.float32(ordered[np.argmax(reached)])
    return np.float32(-np.inf)  # rounding left the last sum a hair below the total: nothing is cut


def _exp(values: Floats32) -> Floats64:
    # torch's is vectorised in float64, numpy's is not everywhere.
    wide: Floats64 = torch.from_numpy(values.astype(np.float64)).exp_().numpy()
    return wide
