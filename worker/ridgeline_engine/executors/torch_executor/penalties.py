"""What each penalised slot has in its prompt and output, kept on the device. Slots without penalties take
nothing."""

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

from ridgeline_engine.seam import SlotAdmit, SlotId

_SPARE_TOKENS = 256

Index = npt.NDArray[np.int64]


def has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


class PenaltyState:
    """Token counts and prompt marks in a pool of rows [vocab] that grows by doubling.

    Beside them the pool lists, by row, the tokens that a penalty may touch: those of prompt and output, each once or
    more, since chosen tokens are appended unread.
    """

    def __init__(self, *, vocab_tokens: int, slots: int, device: torch.device) -> None:
        self._device = device
        self._counts = torch.zeros((0, vocab_tokens), dtype=torch.int32, device=device)
        self._in_prompt = torch.zeros((0, vocab_tokens), dtype=torch.bool, device=device)
        self._scales = torch.zeros((0, 3), dtype=torch.float32, device=device)
        """By row: repetition, frequency, presence."""
        self._listed = torch.zeros((0, _SPARE_TOKENS), dtype=torch.int64, device=device)
        self._used = np.zeros(0, dtype=np.int64)
        """By row: how many of `_listed` count."""
        self._row_of_slot = np.zeros(slots, dtype=np.int64)
        self._owners: set[SlotId] = set()
        self._free_rows: list[int] = []

    def admit(self, admit: SlotAdmit) -> None:
        """Starts counting for a slot, from its prompt and the output that it had before."""
        if not self._free_rows:
            self._grow()
        row, sampling = self._free_rows.pop(), admit.sampling
        vocab_tokens = self._counts.shape[1]
        output = np.asarray(admit.output, dtype=np.int64)
        prompt = np.asarray(admit.prompt if sampling.repetition_penalty != 1.0 else (), dtype=np.int64)
        counts = np.bincount(output, minlength=vocab_tokens).astype(np.int32)
        in_prompt = np.zeros(vocab_tokens, dtype=np.bool_)
        in_prompt[prompt] = True
        scales = (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty)
        self._counts[row] = torch.from_numpy(counts).to(self._device)
        self._in_prompt[row] = torch.from_numpy(in_prompt).to(self._device)
        self._scales[row] = torch.tensor(scales, dtype=torch.float32, device=self._device)
        distinct = np.flatnonzero(in_prompt | (counts > 0))
        self._widen(len(distinct) + _SPARE_TOKENS)
        self._listed[row, : len(distinct)] = torch.from_numpy(distinct).to(self._device)
        self._used[row] = len(distinct)
        self._row_of_slot[admit.slot] = row
        self._owners.add(admit.slot)

    def release(self, slot: SlotId) -> None:
        if slot in self._owners:
            self._owners.remove(slot)
            self._free_rows.append(int(self._row_of_slot[slot]))

    def apply(self, logits: Tensor, rows: Index, slots: Index) -> None:
        """Penalises rows of logits [n, vocab] in place, each by its slot: repetition, frequency, presence.

        float32, one operation at a time, as the sampler's definition rounds: nothing may fuse into a
        multiply-add.
        """
        pool_rows = self._row_of_slot[slots]
        used = self._used[pool_rows]
        place = np.arange(int(used.sum())) - np.repeat(np.cumsum(used) - used, used)
        pool, at = self._move(np.repeat(pool_rows, used)), self._move(np.repeat(rows, used))
        tokens = self._listed[pool, self._move(place)]
        values, counts = logits[at, tokens], self._counts[pool, tokens]
        appeared = counts > 0
        repetition, frequency, presence = (self._scales[pool, column] for column in range(3))
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(appeared | self._in_prompt[pool, tokens], repeated, values)
        values = values - frequency * counts.float()
        # A token that comes twice gets the same value twice.
        logits[at, tokens] = values - presence * appeared.float()

    def count(self, slots: Index, tokens: Tensor) -> None:
        """Adds the chosen token of each slot, int64 [slots], without reading it back."""
        pool_rows = self._row_of_slot[slots]
        used = self._used[pool_rows]
        self._widen(int(used.max()) + 1)
        rows = self._move(pool_rows)
        self._counts[rows, tokens] += 1
        self._listed[rows, self._move(used)] = tokens
        self._used[pool_rows] = used + 1

    def _grow(self) -> None:
        held = len(self._counts)
        added = max(1, held)
        self._counts = _longer(self._counts, added)
        self._in_prompt = _longer(self._in_prompt, added)
        self._scales = _longer(self._scales, added)
        self._listed = _longer(self._listed, added)
        self._used = np.concatenate([self._used, np.zeros(added, dtype=np.int64)])
        self._free_rows.extend(range(held, held + added))

    def _widen(self, tokens: int) -> None:
        """Makes room for so many tokens in each row's list."""
        rows, width = self._listed.shape
        if tokens > width:
            added = self._listed.new_zeros((rows, max(tokens - width, width)))
            self._listed = torch.cat([self._listed, added], dim=1)

    def _move(self, array: Index) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _longer(pool: Tensor, rows: int) -> Tensor:
    return torch.cat([pool, pool.new_zeros((rows, pool.shape[1]))])
