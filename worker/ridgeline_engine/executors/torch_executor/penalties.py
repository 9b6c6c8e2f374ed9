"""What each penalised slot has in its prompt and output, kept on the device. Slots without penalties take
nothing."""

from collections.abc import Sequence

import numpy as np
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

from ridgeline_engine.seam import SlotAdmit, SlotId


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


class PenaltyState:
    """Rows of a pool that grows by doubling: token counts of the output, and which tokens the prompt has."""

    def __init__(self, *, vocab_tokens: int, device: torch.device) -> None:
        self._device = device
        self._counts = torch.zeros((0, vocab_tokens), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_tokens), dtype=torch.bool, device=device)
        self._scales = torch.zeros((0, 3), dtype=torch.float32, device=device)
        self._row_of_slot: dict[SlotId, int] = {}
        self._free_rows: list[int] = []

    def admit(self, admit: SlotAdmit) -> None:
        """Starts counting for a slot, from its prompt and the output that it had before."""
        if not self._free_rows:
            self._grow()
        row = self._row_of_slot[admit.slot] = self._free_rows.pop()
        vocab = self._counts.shape[1]
        counts = np.bincount(np.asarray(admit.output, dtype=np.int64), minlength=vocab).astype(np.int32)
        self._counts[row] = torch.from_numpy(counts).to(self._device)
        in_prompt = np.zeros(vocab, dtype=np.bool_)
        in_prompt[np.asarray(admit.prompt, dtype=np.int64)] = True
        self._in_prompt[row] = torch.from_numpy(in_prompt).to(self._device)
        sampling = admit.sampling
        self._scales[row] = torch.tensor(
            [sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty],
            dtype=torch.float32,
            device=self._device,
        )

    def release(self, slot: SlotId) -> None:
        row = self._row_of_slot.pop(slot, None)
        if row is not None:
            self._free_rows.append(row)

    def rows(self, slots: Sequence[SlotId]) -> Tensor:
        """int64 [slots] on the device: the pool rows of penalised slots."""
        return torch.tensor([self._row_of_slot[slot] for slot in slots], device=self._device)

    def apply(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Penalised copy of logits [n, vocab]: repetition, then frequency, then presence, all in float32.

        One operation at a time, as the sampler's definition rounds: nothing may fuse into a multiply-add.
        """
        counts = self._counts[rows]
        appeared = counts > 0
        scales = self._scales[rows].unsqueeze(-1)
        repetition, frequency, presence = scales[:, 0], scales[:, 1], scales[:, 2]
        repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
        penalised = torch.where(appeared | self._in_prompt[rows], repeated, logits)
        penalised = penalised - frequency * counts.float()
        return penalised - presence * appeared.float()

    def count(self, rows: Tensor, tokens: Tensor) -> None:
        """Adds one chosen token to each of the pool rows, which are distinct."""
        self._counts[rows, tokens] += 1

    def _grow(self) -> None:
        held = len(self._counts)
        added = max(1, held)
        self._counts = torch.cat([self._counts, self._counts.new_zeros((added, self._counts.shape[1]))])
        self._in_prompt = torch.cat(
            [self._in_prompt, self._in_prompt.new_zeros((added, self._in_prompt.shape[1]))]
        )
        self._scales = torch.cat([self._scales, self._scales.new_zeros((added, 3))])
        self._free_rows.extend(range(held, held + added))
