"""Draws tokens for many rows at once: temperature, top-k, top-p, min-p and the choice, on whatever device."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

Draw: TypeAlias = Callable[[Tensor, Tensor, Sequence[SamplingParams], npt.NDArray[np.float64]], Tensor]
"""(logits, best, sampling, uniforms) -> int64 [n] on the logits' device: steps 9 to 13 of the sampler's
definition.

`logits` is float32 [n, vocab], adjusted; `best` [n, 1] its largest values; no temperature is 0; uniforms
float64 [n]. A row whose best is not finite gets some token of the vocabulary.
"""


def draw_batch(
    logits: Tensor, best: Tensor, sampling: Sequence[SamplingParams], uniforms: npt.NDArray[np.float64]
) -> Tensor:
    """See `Draw`."""
    weights = _kept_weights(logits, best, sampling)
    cumulative = weights.cumsum(dim=-1)
    target = torch.from_numpy(uniforms).to(logits.device).unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    return chosen.clamp_(max=logits.shape[1] - 1)


def _kept_weights(adjusted: Tensor, best: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """float64 [n, vocab]: exp of what each row keeps, the best token at 1, and 0 for the rest."""
    divisors = _column([each.divisor for each in sampling], torch.float32, adjusted.device)
    scaled = (adjusted - best) / divisors
    vocab = scaled.shape[1]
    limited = [row for row, each in enumerate(sampling) if 0 < each.top_k < vocab]
    if limited:
        _cut_top_k(scaled, limited, [sampling[row].top_k for row in limited])
    weights = scaled.double().exp_()
    nucleus = [row for row, each in enumerate(sampling) if each.top_p < 1.0]
    if nucleus:
        _cut_top_p(scaled, weights, nucleus, [sampling[row].top_p for row in nucleus])
    if any(each.min_p > 0.0 for each in sampling):
        least = _column([each.min_p for each in sampling], torch.float64, adjusted.device)
        weights.masked_fill_(weights < least, 0.0)
    return weights


def _cut_top_k(scaled: Tensor, rows: Sequence[int], counts: Sequence[int]) -> None:
    """Sets what is below the k-th largest to -inf, in place; ties at the k-th value stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked = scaled[index]
    at = torch.tensor(counts, device=scaled.device).unsqueeze(1) - 1
    least = torch.topk(picked, max(counts), dim=-1).values.gather(1, at)
    scaled[index] = picked.masked_fill_(picked < least, -torch.inf)


def _cut_top_p(scaled: Tensor, weights: Tensor, rows: Sequence[int], shares: Sequence[float]) -> None:
    """Zeroes the weights below each row's nucleus, in place; ties at its boundary stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked, kept = scaled[index], weights[index]
    wanted = _column(shares, torch.float64, scaled.device) * kept.sum(dim=-1, keepdim=True)
    ordered = picked.sort(dim=-1, descending=True).values
    reached = ordered.double().exp_().cumsum(dim=-1) >= wanted
    first = reached.to(torch.uint8).argmax(dim=-1, keepdim=True)
    # Rounding may leave even the last sum a hair below the total: then nothing is cut.
    boundary = ordered.gather(1, first).masked_fill_(~reached[:, -1:], -torch.inf)
    weights[index] = kept.masked_fill_(picked < boundary, 0.0)


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, 1]. A tensor, because division by a Python number may become a product with its reciprocal."""
    return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)
