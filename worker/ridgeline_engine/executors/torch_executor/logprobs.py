"""Log-probabilities of the raw logits, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ridgeline_contracts.sampling import TokenLogprob
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RawLogprobs:
    """Of n rows. Made before the logits are adjusted; read when the tokens are known."""

    rows: Tensor
    """int64 [n]: which sampled rows these are."""
    logprobs: Tensor
    """float64 [n, vocab]."""
    best: Tensor
    """int64 [n, widest]: the most likely tokens, lowest id first on a tie."""
    wanted: tuple[int, ...]
    """How many of `best` each row asked for."""

    def read(self, tokens: Tensor) -> dict[int, TokenLogprob]:
        """By sampled row; tokens int64 [all sampled rows]."""
        chosen = tokens[self.rows].unsqueeze(1)
        chosen_logprobs = self.logprobs.gather(1, chosen).squeeze(1).tolist()
        best_logprobs = self.logprobs.gather(1, self.best).tolist()
        facts = zip(
            self.rows.tolist(),
            chosen.squeeze(1).tolist(),
            chosen_logprobs,
            self.best.tolist(),
            best_logprobs,
            self.wanted,
            strict=True,
        )
        return {
            row: TokenLogprob(token, logprob, tuple(zip(ids[:count], values[:count], strict=True)))
            for row, token, logprob, ids, values, count in facts
        }


def raw_logprobs(logits: Tensor, rows: Sequence[int], wanted: Sequence[int]) -> RawLogprobs:
    """For the given rows of logits [sampled rows, vocab]; a row that is not finite gives values without
    meaning."""
    index = torch.tensor(rows, device=logits.device)
    picked = logits[index]
    wide = picked.double()
    shifted = wide - wide.amax(dim=-1, keepdim=True)
    return RawLogprobs(
        rows=index,
        logprobs=shifted - shifted.exp().sum(dim=-1, keepdim=True).log(),
        best=_best(picked, max(wanted)),
        wanted=tuple(wanted),
    )


def _best(logits: Tensor, count: int) -> Tensor:
    """int64 [n, count]: ids by falling logit, then by rising id. topk alone leaves the order of ties open."""
    if count == 0:
        return torch.zeros((len(logits), 0), dtype=torch.int64, device=logits.device)
    ids = torch.topk(logits, count, dim=-1).indices
    least = logits.gather(1, ids).amin(dim=-1, keepdim=True)
    if bool(((logits >= least).sum(dim=-1) > count).any()):
        return logits.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    ids = ids.sort(dim=-1).values
    return ids.gather(1, logits.gather(1, ids).sort(dim=-1, descending=True, stable=True).indices)
