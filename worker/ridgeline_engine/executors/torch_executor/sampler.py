"""Chooses tokens for a batch of rows on the device. `ridgeline_engine.sampler_oracle` defines what it must
choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from ridgeline_contracts.sampling import SamplingParams
from torch import Tensor

from ridgeline_engine.executors.torch_executor.adjustments import add_bias, apply_masks, forbid
from ridgeline_engine.executors.torch_executor.draw_batch import Draw, draw_batch
from ridgeline_engine.executors.torch_executor.draw_rows import draw_rows
from ridgeline_engine.executors.torch_executor.logprobs import RawLogprobs, raw_logprobs
from ridgeline_engine.executors.torch_executor.penalties import PenaltyState, has_penalties
from ridgeline_engine.random_bits import DRAW_TOKEN, uniforms
from ridgeline_engine.sampler_oracle import FAULT_NO_TOKEN, FAULT_NOT_FINITE, Sampled
from ridgeline_engine.seam import RowPlan, SlotAdmit, SlotId, TokenMask

_FAULTS = (None, FAULT_NOT_FINITE, FAULT_NO_TOKEN)


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step drew, perhaps not there yet: `read` waits."""

    tokens: Tensor
    """int64 [rows] on the device; 0 for a row that faulted."""
    faults: Tensor
    """uint8 [rows]: index in `_FAULTS`."""
    logprobs: RawLogprobs | None

    def read(self) -> list[Sampled]:
        logprobs = {} if self.logprobs is None else self.logprobs.read(self.tokens)
        rows = enumerate(zip(self.tokens.tolist(), self.faults.tolist(), strict=True))
        return [
            Sampled(token, logprobs.get(row)) if fault == 0 else Sampled(None, fault=_FAULTS[fault])
            for row, (token, fault) in rows
        ]


class Sampler:
    """Keeps per slot how to sample, and the state of its penalties."""

    def __init__(self, *, vocab_tokens: int, device: torch.device, draw: Draw | None = None) -> None:
        """`draw` None takes what suits the device."""
        self._device = device
        self._draw_tokens = draw or (draw_rows if device.type == "cpu" else draw_batch)
        self._penalties = PenaltyState(vocab_tokens=vocab_tokens, device=device)
        self._slots: dict[SlotId, SlotAdmit] = {}

    def admit(self, admit: SlotAdmit) -> None:
        self._slots[admit.slot] = admit
        if has_penalties(admit.sampling):
            self._penalties.admit(admit)

    def release(self, slot: SlotId) -> None:
        del self._slots[slot]
        self._penalties.release(slot)

    def sample(self, logits: Tensor, rows: Sequence[RowPlan], masks: Mapping[SlotId, TokenMask]) -> Drawn:
        """One token a row. logits float32 [rows, vocab], which this call may overwrite."""
        slots = [self._slots[row.slot] for row in rows]
        sampling = [slot.sampling for slot in slots]
        logprobs = _logprobs(logits, sampling)
        raw_best = self._adjust(logits, rows, slots, masks)
        tokens = _argmax(logits)
        best = logits.gather(1, tokens.unsqueeze(1))
        faults = _faults(best.squeeze(1) if raw_best is None else raw_best, best.squeeze(1))
        drawing = [row for row, each in enumerate(sampling) if each.temperature != 0.0]
        if drawing:
            self._draw(tokens, logits, best, rows, drawing)
        tokens.masked_fill_(faults != 0, 0)
        self._count(tokens, slots)
        return Drawn(tokens, faults, logprobs)

    def _adjust(
        self,
        logits: Tensor,
        rows: Sequence[RowPlan],
        slots: Sequence[SlotAdmit],
        masks: Mapping[SlotId, TokenMask],
    ) -> Tensor | None:
        """Steps 2 to 7 in place. Returns the largest raw logits [rows] if anything was changed."""
        penalised = [row for row, slot in enumerate(slots) if has_penalties(slot.sampling)]
        biases = [(row, *each) for row, slot in enumerate(slots) for each in slot.sampling.logit_bias]
        masked = {row: masks[slot.slot] for row, slot in enumerate(slots) if slot.slot in masks}
        ends = [
            (row, token)
            for row, slot in enumerate(slots)
            if rows[row].output_position < slot.sampling.min_tokens
            for token in (*slot.eos_token_ids, *slot.sampling.stop_token_ids)
        ]
        if not (penalised or biases or masked or ends):
            return None
        raw_best = logits.amax(dim=-1)
        if penalised:
            self._penalties.apply(logits, penalised, [slots[row].slot for row in penalised])
        if biases:
            add_bias(logits, biases)
        if masked:
            apply_masks(logits, masked)
        if ends:
            forbid(logits, ends)
        return raw_best

    def _draw(
        self, tokens: Tensor, logits: Tensor, best: Tensor, rows: Sequence[RowPlan], drawing: Sequence[int]
    ) -> None:
        """Steps 9 to 13 for the rows in `drawing`, into `tokens`."""
        owners = [self._slots[rows[row].slot] for row in drawing]
        uniform = uniforms(
            [owner.seed for owner in owners],
            [owner.choice for owner in owners],
            [rows[row].output_position for row in drawing],
            draw=DRAW_TOKEN,
        )
        if len(drawing) < len(rows):
            index = torch.tensor(drawing, device=self._device)
            logits, best = logits[index], best[index]
        else:
            index = torch.arange(len(rows), device=self._device)
        tokens[index] = self._draw_tokens(logits, best, [owner.sampling for owner in owners], uniform)

    def _count(self, tokens: Tensor, slots: Sequence[SlotAdmit]) -> None:
        penalised = [row for row, slot in enumerate(slots) if has_penalties(slot.sampling)]
        if penalised:
            index = torch.tensor(penalised, device=self._device)
            self._penalties.count([slots[row].slot for row in penalised], tokens[index])


def _logprobs(logits: Tensor, sampling: Sequence[SamplingParams]) -> RawLogprobs | None:
    asked = [(row, each.logprobs) for row, each in enumerate(sampling) if each.logprobs is not None]
    if not asked:
        return None
    return raw_logprobs(logits, [row for row, _ in asked], [count for _, count in asked])


def _argmax(logits: Tensor) -> Tensor:
    """int64 [rows], the lowest id on a tie; NaN counts as the largest."""
    if logits.device.type == "cpu":
        # numpy's is vectorised: some twenty times as fast as torch's.
        return torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
    return logits.argmax(dim=-1)


def _faults(raw_best: Tensor, best: Tensor) -> Tensor:
    """uint8 [rows]. NaN spreads to a row's largest value, so one comparison finds both it and +inf."""
    not_finite = ~(raw_best < torch.inf)
    return not_finite.to(torch.uint8) + 2 * ((best == -torch.inf) & ~not_finite)
