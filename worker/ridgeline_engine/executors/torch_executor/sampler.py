"""Chooses tokens for a batch of rows on the device. `ridgeline_engine.sampler_oracle` defines what it must
choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from ridgeline_kernels.cpu import DrawColumns
from torch import Tensor

from ridgeline_engine.executors.torch_executor.adjustments import add_bias, apply_masks, forbid
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps, TorchTokens
from ridgeline_engine.executors.torch_executor.logprobs import RawLogprobs, raw_logprobs
from ridgeline_engine.executors.torch_executor.penalties import PenaltyState, has_penalties
from ridgeline_engine.executors.torch_executor.slot_columns import Index, SlotColumns
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

    def __init__(
        self, *, vocab_tokens: int, max_batch: int, device: torch.device, token_ops: TokenOps | None = None
    ) -> None:
        """`max_batch` slots. `token_ops` None are torch's, which run on any device."""
        self._device = device
        self._token_ops = token_ops or TorchTokens()
        self._columns = SlotColumns(max_batch)
        self._penalties = PenaltyState(vocab_tokens=vocab_tokens, slots=max_batch, device=device)

    def admit(self, admit: SlotAdmit) -> None:
        is_penalised = has_penalties(admit.sampling)
        self._columns.put(admit, is_penalised=is_penalised)
        if is_penalised:
            self._penalties.admit(admit)

    def release(self, slot: SlotId) -> None:
        self._penalties.release(slot)

    def sample(self, logits: Tensor, rows: Sequence[RowPlan], masks: Mapping[SlotId, TokenMask]) -> Drawn:
        """One token a row. logits float32 [rows, vocab], dense, which this call may overwrite."""
        slots = np.fromiter((row.slot for row in rows), dtype=np.int64, count=len(rows))
        positions = np.fromiter((row.output_position for row in rows), dtype=np.int64, count=len(rows))
        logprobs = self._logprobs(logits, slots)
        raw_best = self._adjust(logits, slots, positions, masks)
        tokens, best = self._token_ops.best(logits)
        faults = _faults(best if raw_best is None else raw_best, best)
        drawing = np.flatnonzero(self._columns.temperature[slots] != 0.0)
        if len(drawing):
            index = torch.from_numpy(drawing).to(self._device)
            columns = self._draw_columns(slots[drawing], positions[drawing])
            tokens[index] = self._token_ops.draw(logits, best[index], drawing, columns)
        tokens.masked_fill_(faults != 0, 0)
        penalised = np.flatnonzero(self._columns.is_penalised[slots])
        if len(penalised):
            self._penalties.count(slots[penalised], tokens[torch.from_numpy(penalised).to(self._device)])
        return Drawn(tokens, faults, logprobs)

    def _logprobs(self, logits: Tensor, slots: Index) -> RawLogprobs | None:
        asked = np.flatnonzero(self._columns.has_logprobs[slots])
        if not len(asked):
            return None
        return raw_logprobs(logits, asked, self._columns.logprobs[slots[asked]], self._token_ops)

    def _adjust(
        self, logits: Tensor, slots: Index, positions: Index, masks: Mapping[SlotId, TokenMask]
    ) -> Tensor | None:
        """Steps 2 to 7 in place. Returns the largest raw logits [rows] if anything was changed."""
        columns = self._columns
        if not (masks or columns.is_adjusted[slots].any()):
            return None
        penalised = np.flatnonzero(columns.is_penalised[slots])
        biases = columns.bias.of(slots)
        masked = _masks_by_row(slots, masks)
        early = np.flatnonzero(positions < columns.min_tokens[slots])
        ends = columns.ends.of(slots[early])
        if not (len(penalised) or len(biases.rows) or masked or len(ends.rows)):
            return None
        raw_best = logits.amax(dim=-1)
        if len(penalised):
            self._penalties.apply(logits, penalised, slots[penalised])
        if len(biases.rows):
            add_bias(logits, biases)
        if masked:
            apply_masks(logits, masked)
        if len(ends.rows):
            forbid(logits, replace(ends, rows=early[ends.rows]))
        return raw_best

    def _draw_columns(self, slots: Index, positions: Index) -> DrawColumns:
        columns = self._columns
        return DrawColumns(
            temperature=columns.temperature[slots],
            top_k=columns.top_k[slots],
            top_p=columns.top_p[slots],
            min_p=columns.min_p[slots],
            uniform=uniforms(columns.seed[slots], columns.choice[slots], positions, draw=DRAW_TOKEN),
        )


def _masks_by_row(slots: Index, masks: Mapping[SlotId, TokenMask]) -> dict[int, TokenMask]:
    if not masks:
        return {}
    return {row: masks[SlotId(slot)] for row, slot in enumerate(slots.tolist()) if slot in masks}


def _faults(raw_best: Tensor, best: Tensor) -> Tensor:
    """uint8 [rows]. NaN spreads to a row's largest value, so one comparison finds both it and +inf."""
    no_token = (best == -torch.inf).to(torch.uint8).mul_(2)
    return no_token.masked_fill_((raw_best < torch.inf).logical_not_(), 1)
