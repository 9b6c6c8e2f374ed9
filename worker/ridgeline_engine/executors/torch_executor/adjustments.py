"""Logit bias, token masks and min_tokens, in place on the rows that have them."""

from collections.abc import Mapping

import numpy as np
import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor

from ridgeline_engine.executors.torch_executor.slot_columns import Entries
from ridgeline_engine.seam import SlotId, TokenMask


def check_mask(slot: SlotId, mask: TokenMask, *, vocab_tokens: int) -> None:
    """Raises InvariantError for a mask that has not a bit for each token."""
    words = -(-vocab_tokens // 32)
    if mask.dtype != np.uint32 or mask.shape != (words,):
        raise InvariantError(
            f"the token mask of slot {slot} is {mask.dtype} {list(mask.shape)}; "
            f"a vocabulary of {vocab_tokens} wants uint32 [{words}]"
        )


def add_bias(logits: Tensor, entries: Entries) -> None:
    """Adds the entries' values, a repeated token's one after the other. logits [rows, vocab]."""
    at = torch.from_numpy(entries.rows * logits.shape[1] + entries.tokens)
    biases = torch.from_numpy(entries.values)
    logits.view(-1).scatter_add_(0, at.to(logits.device), biases.to(logits.device))


def forbid(logits: Tensor, entries: Entries) -> None:
    """Sets the entries' logits to -inf."""
    rows, tokens = torch.from_numpy(entries.rows), torch.from_numpy(entries.tokens)
    logits[rows.to(logits.device), tokens.to(logits.device)] = -torch.inf


def apply_masks(logits: Tensor, masks: Mapping[int, TokenMask]) -> None:
    """By row: sets the logits of tokens whose bit is not set to -inf."""
    rows = torch.tensor(list(masks), device=logits.device)
    words = torch.from_numpy(np.stack([mask.view(np.int32) for mask in masks.values()])).to(logits.device)
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((words.unsqueeze(-1) >> bits) & 1).bool().view(len(masks), -1)[:, : logits.shape[1]]
    logits[rows] = logits[rows].masked_fill_(~allowed, -torch.inf)
