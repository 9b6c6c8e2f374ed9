"""From adjusted logits to a drawn token: temperature, top-k, top-p, min-p and the choice, for many rows at
once."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

from ridgeline_engine.executors.torch_executor.selection import largest

_SORTED = (256, 4096)
"""top-p looks at so many of the most likely tokens of a row before it sorts the whole of it."""
_PIECE = 256
"""Weights that are summed at once while looking for the piece of the vocabulary that holds the choice."""


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
    """int64 [n]: the first token whose cumulative weight exceeds uniform * total, never one of weight 0.

    weights float64 [n, vocab], uniforms float64 [n] below 1.
    """
    rows, vocab = weights.shape
    pieces = F.pad(weights, (0, -vocab % _PIECE)).view(rows, -1, _PIECE)
    ends = pieces.sum(dim=-1).cumsum(dim=-1)
    target = uniforms.unsqueeze(1) * ends[:, -1:]
    # A row that is not finite has no right answer: what it gives only has to lie inside the vocabulary.
    piece = torch.searchsorted(ends, target, right=True).clamp_(max=pieces.shape[1] - 1)
    before = F.pad(ends, (1, 0)).gather(1, piece)
    within = pieces.gather(1, piece.unsqueeze(-1).expand(-1, -1, _PIECE)).squeeze(1).cumsum(dim=-1)
    # The piece's sum was taken in another order: stay below this one, else a token of weight 0 could follow.
    highest = torch.nextafter(within[:, -1:], torch.zeros_like(before))
    offset = torch.searchsorted(within, torch.minimum(target - before, highest), right=True)
    return (piece * _PIECE + offset).squeeze(1).clamp_(max=vocab - 1)


def _cut_top_k(scaled: Tensor, rows: Sequence[int], counts: Sequence[int]) -> None:
    """Sets what is below the k-th largest to -inf, in place; ties at the k-th value stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked = scaled[index]
    at = torch.tensor(counts, device=scaled.device).unsqueeze(1) - 1
    least = largest(picked, max(counts)).gather(1, at)
    scaled[index] = picked.masked_fill_(picked < least, -torch.inf)


def _cut_top_p(scaled: Tensor, weights: Tensor, rows: Sequence[int], shares: Sequence[float]) -> None:
    """Zeroes the weights below each row's nucleus, in place; ties at its boundary stay."""
    index = torch.tensor(rows, device=scaled.device)
    picked, kept = scaled[index], weights[index]
    wanted = _column(shares, torch.float64, scaled.device) * kept.sum(dim=-1, keepdim=True)
    boundary = torch.full_like(wanted, -torch.inf, dtype=torch.float32)
    still = torch.arange(len(rows), device=scaled.device)
    for count in (*(count for count in _SORTED if count < picked.shape[1]), picked.shape[1]):
        values, found = _boundary(picked[still], wanted[still], count)
        # Rounding may leave even the last sum a hair below the total: then nothing is cut.
        boundary[still[found]] = values[found]
        still = still[~found]
        if not len(still):
            break
    weights[index] = kept.masked_fill_(picked < boundary, 0.0)


def _boundary(scaled: Tensor, wanted: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The value [n, 1] at which the cumulative weight of the `count` largest reaches `wanted` [n, 1]; whether
    it does, bool [n]."""
    ordered = largest(scaled, count)
    reached = ordered.double().exp_().cumsum(dim=-1) >= wanted
    first = reached.to(torch.uint8).argmax(dim=-1, keepdim=True)
    return ordered.gather(1, first), reached.any(dim=-1)


def _column(values: Sequence[float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, 1]. A tensor, because division by a Python number may become a product with its reciprocal."""
    return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)
