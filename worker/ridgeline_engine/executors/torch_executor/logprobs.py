"""Log-probabilities of the raw logits, in float64."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.sampling import TokenLogprob
from torch import Tensor

from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps


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


def raw_logprobs(
    logits: Tensor, rows: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64], token_ops: TokenOps
) -> RawLogprobs:
    """For the given rows of logits [sampled rows, vocab]. A row that is not finite gives values without
    meaning."""
    index = torch.from_numpy(rows).to(logits.device)
    best, normalisers = token_ops.most_likely(logits, rows, int(wanted.max()))
    return RawLogprobs(index, logits[index], normalisers, best, tuple(wanted.tolist()))
