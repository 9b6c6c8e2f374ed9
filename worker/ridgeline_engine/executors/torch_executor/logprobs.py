"""Log-probabilities of the raw logits, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ridgeline_contracts.sampling import TokenLogprob
from torch import Tensor

_ROWS_AT_ONCE = 4
"""On a CPU: so many rows in float64 stay in its cache."""


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Of n rows. Made before the logits are adjusted; read when the tokens are known."""

    rows: Tensor
    """int64 [n]: which sampled rows these are."""
    logits: Tensor
    """float32 [n, vocab]: a copy."""
    normalisers: Tensor
    """float64 [n, 1]: a logit less this is its logarithm of probability."""
    best: Tensor
    """int64 [n, widest]: the most likely tokens, lowest id first on a tie."""
    wanted: tuple[int, ...]
    """How many of `best` each row asked for."""

    def read(self, tokens: Tensor) -> dict[int, TokenLogprob]:
        """By sampled row; tokens int64 [all sampled rows]."""
        chosen = tokens[self.rows].unsqueeze(1)
        facts = zip(
            self.rows.tolist(),
            chosen.squeeze(1).tolist(),
            self._of(chosen).squeeze(1).tolist(),
            self.best.tolist(),
            self._of(self.best).tolist(),
            self.wanted,
            strict=True,
        )
        return {
            row: TokenLogprob(token, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
            for row, token, logprob, ids, values, count in facts
        }

    def _of(self, ids: Tensor) -> Tensor:
        return self.logits.gather(1, ids).double() - self.normalisers


def raw_logprobs(logits: Tensor, rows: Sequence[int], wanted: Sequence[int]) -> RawLogprobs:
    """For the given rows of logits [sampled rows, vocab]. A row that is not finite gives values without
    meaning."""
    index = torch.tensor(rows, device=logits.device)
    picked = logits[index]
    on_cpu = logits.device.type == "cpu"
    parts = torch.split(picked, _ROWS_AT_ONCE) if on_cpu else (picked,)
    return RawLogprobs(
        rows=index,
        logits=picked,
        normalisers=torch.cat([part.double().logsumexp(dim=-1, keepdim=True) for part in parts]),
        best=best_by_row(picked, max(wanted)) if on_cpu else best_by_sort(picked, max(wanted)),
        wanted=tuple(wanted),
    )


def best_by_sort(logits: Tensor, count: int) -> Tensor:
    """int64 [n, count]: ids by falling logit, then by rising id."""
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def best_by_row(logits: Tensor, count: int) -> Tensor:
    """The same for a CPU, where sorting all of a row takes as long as the rest of a step."""
    found = np.zeros((len(logits), count), dtype=np.int64)
    for best, row in zip(found, logits.numpy(), strict=True):
        if 0 < count < len(row) and not np.isnan(row).any():
            candidates = np.flatnonzero(row >= np.partition(row, -count)[-count])
            best[:] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
        else:
            best[:] = np.argsort(-row, kind="stable")[:count]
    return torch.from_numpy(found)
