"""What each penalised slot has in its prompt and output, kept on the device. Slots without penalties take
nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

from ridgeline_engine.seam import SlotAdmit, SlotId

_SPARE_TOKENS = 256


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


@dataclass(slots=True)
class _Seen:
    """The tokens of one slot that a penalty may touch. Output tokens are appended unread, so some come
    twice."""

    row: int
    """Of the pool."""
    tokens: Tensor
    """int64; the first `used` count."""
    used: int


class PenaltyState:
    """Token counts and prompt marks in a pool of rows [vocab] that grows by doubling."""

    def __init__(self, *, vocab_tokens: int, device: torch.device) -> None:
        self._device = device
        self._vocab_tokens = vocab_tokens
        self._counts = torch.zeros((0, vocab_tokens), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_tokens), dtype=torch.bool, device=device)
        self._scales = torch.zeros((0, 3), dtype=torch.float32, device=device)
        """By row: repetition, frequency, presence."""
        self._seen: dict[SlotId, _Seen] = {}
        self._free_rows: list[int] = []

    def admit(self, admit: SlotAdmit) -> None:
        """Starts counting for a slot, from its prompt and the output that it had before."""
        if not self._free_rows:
            self._grow()
        row, sampling = self._free_rows.pop(), admit.sampling
        output = np.asarray(admit.output, dtype=np.int64)
        prompt = np.asarray(admit.prompt if sampling.repetition_penalty != 1.0 else (), dtype=np.int64)
        counts = np.bincount(output, minlength=self._vocab_tokens).astype(np.int32)
        in_prompt = np.zeros(self._vocab_tokens, dtype=np.bool_)
        in_prompt[prompt] = True
        scales = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._counts[row] = torch.from_numpy(counts).to(self._device)
        self._in_prompt[row] = torch.from_numpy(in_prompt).to(self._device)
        self._scales[row] = torch.tensor(scales, dtype=torch.float32, device=self._device)
        distinct = np.flatnonzero(in_prompt | (counts > 0))
        tokens = torch.zeros(len(distinct) + _SPARE_TOKENS, dtype=torch.int64, device=self._device)
        tokens[: len(distinct)] = torch.from_numpy(distinct).to(self._device)
        self._seen[admit.slot] = _Seen(row, tokens, len(distinct))

    def release(self, slot: SlotId) -> None:
        seen = self._seen.pop(slot, None)
        if seen is not None:
            self._free_rows.append(seen.row)

    def apply(self, logits: Tensor, rows: Sequence[int], slots: Sequence[SlotId]) -> None:
        """Penalises rows of logits [n, vocab] in place, each by its slot: repetition, frequency, presence.

        float32, one operation at a time, as the sampler's definition rounds: nothing may fuse into a
        multiply-add.
        """
        found = [self._seen[slot] for slot in slots]
        used = torch.tensor([seen.used for seen in found], device=self._device)
        pool = torch.tensor([seen.row for seen in found], device=self._device).repeat_interleave(used)
        at = torch.tensor(rows, device=self._device).repeat_interleave(used)
        tokens = torch.cat([seen.tokens[: seen.used] for seen in found])
        values, counts = logits[at, tokens], self._counts[pool, tokens]
        appeared = counts > 0
        repetition, frequency, presence = (self._scales[pool, column] for column in range(3))
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(appeared | self._in_prompt[pool, tokens], repeated, values)
        values = values - frequency * counts.float()
        # A token that comes twice gets the same value twice.
        logits[at, tokens] = values - presence * appeared.float()

    def count(self, slots: Sequence[SlotId], tokens: Tensor) -> None:
        """Adds the chosen token of each slot, int64 [slots], without reading it back."""
        found = [self._seen[slot] for slot in slots]
        self._counts[torch.tensor([seen.row for seen in found], device=self._device), tokens] += 1
        for seen, token in zip(found, tokens, strict=True):
            if seen.used == len(seen.tokens):
                seen.tokens = torch.cat([seen.tokens, torch.zeros_like(seen.tokens)])
            seen.tokens[seen.used] = token
            seen.used += 1

    def _grow(self) -> None:
        held = len(self._counts)
        added = max(1, held)
        self._counts = _longer(self._counts, added)
        self._in_prompt = _longer(self._in_prompt, added)
        self._scales = _longer(self._scales, added)
        self._free_rows.extend(range(held, held + added))


def _longer(pool: Tensor, rows: int) -> Tensor:
    return torch.cat([pool, pool.new_zeros((rows, pool.shape[1]))])
