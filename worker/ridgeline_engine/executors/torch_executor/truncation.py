"""From adjusted logits to a drawn token: temperature, top-k, top-p, min-p and the choice, for many rows at
once."""

from collections.abc import Sequence

import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

_FIRST_SORTED = 256
"""top-p looks at so many of the most likely tokens before it sorts a whole row."""


def kept_weights(adjusted: Tensor, best: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """float64 [n, vocab]: exp of what each row keeps, the best token at 1, and 0 for the rest.

    `adjusted` is float32 [n, vocab], `best` [n, 1] its largest values; no temperature is 0.
    """
    temperatures = _column([each.temperature for each in sampling], torch.float32, adjusted.device)
    scaled = (adjusted - best) / temperatures
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


def choose(weights: Tensor, uniforms: Tensor) -> Tensor:
    """int64 [n]: the first token whose cumulative weight exceeds uniform * total. Both arguments are
    float64."""
    cumulative = weights.cumsum(dim=-1)
    target = uniforms.unsqueeze(1) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    # A row that is not finite has no right answer; keep what it gives inside the vocabulary.
    return chosen.clamp_(max=weights.shape[1] - 1)


def _cut_top_k(scaled: Tensor, rows: Sequence[int], counts: Sequence[int]) -> None:
    """Sets what is below the k-th largest to -inf, in place; ties at the k-th value stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked = scaled[index]
    largest = torch.topk(picked, max(counts), dim=-1).values
    at = torch.tensor(counts, device=scaled.device).unsqueeze(1) - 1
    scaled[index] = picked.masked_fill_(picked < largest.gather(1, at), -torch.inf)


def _cut_top_p(scaled: Tensor, weights: Tensor, rows: Sequence[int], shares: Sequence[float]) -> None:
    """Zeroes the weights below each row's nucleus, in place; ties at its boundary stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked, kept = scaled[index], weights[index]
    wanted = _column(shares, torch.float64, scaled.device) * kept.sum(dim=-1, keepdim=True)
    boundary, found = _boundary(picked, wanted, min(_FIRST_SORTED, picked.shape[1]))
    if not bool(found.all()):
        boundary, found = _boundary(picked, wanted, picked.shape[1])
        # Rounding may leave the last sum a hair below the total: then nothing is cut.
        boundary = boundary.masked_fill(~found, -torch.inf)
    weights[index] = kept.masked_fill_(picked < boundary, 0.0)


def _boundary(scaled: Tensor, wanted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The value [n, 1] at which the cumulative weight of the `count` largest reaches `wanted`, and whether it
    does."""
    largest = torch.topk(scaled, count, dim=-1).values
    reached = largest.double().exp_().cumsum(dim=-1) >= wanted
    first = reached.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return largest.gather(1, first), reached.any(dim=-1, keepdim=True)


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, 1]. A tensor, because division by a Python number may become a product with its reciprocal."""
    return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)
