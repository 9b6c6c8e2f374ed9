"""Chooses tokens in torch, for many rows at once and on whatever device.

`ridgeline_kernels.cpu.sampling` does the same in C for a CPU.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_kernels.cpu import DrawColumns
from torch import Tensor


class TokenOps(Protocol):
    """What the sampler needs of each row of logits. Adjusted logits are float32 [rows, vocab], dense."""

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens int64 [rows], logits float32 [rows]): the largest of each row, the lowest id on a tie. A row that
        holds NaN gives some token of the vocabulary, and NaN."""
        ...

    def draw(self, logits: Tensor, best: Tensor, rows: npt.NDArray[np.int64], columns: DrawColumns) -> Tensor:
        """int64 [n] on the logits' device: steps 9 to 13 of the sampler's definition for n `rows` of the logits.

        `best` float32 [n] is the largest logit of each; no temperature is 0. A row whose best is not finite gets
        some token of the vocabulary.
        """
        ...

    def most_likely(self, logits: Tensor, rows: npt.NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        """(ids int64 [n, count], normalisers float64 [n, 1]): the most likely tokens of n `rows`, lowest id first on
        a tie, and log(sum(exp(logits))). A row that is not finite gives ids of the vocabulary, values without meaning.
        """
        ...


class TorchTokens:
    """See `TokenOps`."""

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        if logits.device.type == "cpu":
            # numpy's is vectorised: some twenty times as fast as torch's.
            tokens = torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
        else:
            tokens = logits.argmax(dim=-1)
        return tokens, logits.gather(1, tokens.unsqueeze(1)).squeeze(1)

    def draw(self, logits: Tensor, best: Tensor, rows: npt.NDArray[np.int64], columns: DrawColumns) -> Tensor:
        weights = _kept_weights(_picked(logits, rows), best.unsqueeze(1), columns)
        cumulative = weights.cumsum(dim=-1)
        target = _column(columns.uniform, logits) * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        return chosen.clamp_(max=logits.shape[1] - 1)

    def most_likely(self, logits: Tensor, rows: npt.NDArray[np.int64], count: int) -> tuple[Tensor, Tensor]:
        picked = _picked(logits, rows)
        best = picked.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        return best, picked.double().logsumexp(dim=-1, keepdim=True)


def _kept_weights(adjusted: Tensor, best: Tensor, columns: DrawColumns) -> Tensor:
    """float64 [n, vocab]: exp of what each row keeps, the best token at 1, and 0 for the rest."""
    # A tensor of temperatures: division by a Python number may become a product with its reciprocal.
    scaled = (adjusted - best) / _column(columns.temperature, adjusted)
    limited = np.flatnonzero((columns.top_k > 0) & (columns.top_k < scaled.shape[1]))
    if len(limited):
        _cut_top_k(scaled, limited, columns.top_k[limited])
    weights = scaled.double().exp_()
    nucleus = np.flatnonzero(columns.top_p < 1.0)
    if len(nucleus):
        _cut_top_p(scaled, weights, nucleus, columns.top_p[nucleus])
    if (columns.min_p > 0.0).any():
        weights.masked_fill_(weights < _column(columns.min_p, adjusted), 0.0)
    return weights


def _cut_top_k(scaled: Tensor, rows: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> None:
    """Sets what is below the k-th largest to -inf, in place; ties at the k-th value stay."""
    index = torch.from_numpy(rows).to(scaled.device)
    picked = scaled[index]
    at = _column(counts, scaled) - 1
    least = torch.topk(picked, int(counts.max()), dim=-1).values.gather(1, at)
    scaled[index] = picked.masked_fill_(picked < least, -torch.inf)


def _cut_top_p(
    scaled: Tensor, weights: Tensor, rows: npt.NDArray[np.int64], shares: npt.NDArray[np.float64]
) -> None:
    """Zeroes the weights below each row's nucleus, in place; ties at its boundary stay."""
    index = torch.from_numpy(rows).to(scaled.device)
    picked, kept = scaled[index], weights[index]
    wanted = _column(shares, scaled) * kept.sum(dim=-1, keepdim=True)
    ordered = picked.sort(dim=-1, descending=True).values
    reached = ordered.double().exp_().cumsum(dim=-1) >= wanted
    first = reached.to(torch.uint8).argmax(dim=-1, keepdim=True)
    # Rounding may leave even the last sum a hair below the total: then nothing is cut.
    boundary = ordered.gather(1, first).masked_fill_(~reached[:, -1:], -torch.inf)
    weights[index] = kept.masked_fill_(picked < boundary, 0.0)


def _picked(logits: Tensor, rows: npt.NDArray[np.int64]) -> Tensor:
    """A copy of these rows."""
    return logits[torch.from_numpy(rows).to(logits.device)]


def _column(values: npt.NDArray[np.generic], beside: Tensor) -> Tensor:
    """[n, 1] of the values' own type, where `beside` lies."""
    return torch.from_numpy(values).to(beside.device).unsqueeze(1)
