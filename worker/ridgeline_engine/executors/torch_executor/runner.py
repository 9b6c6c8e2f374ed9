"""One step on the device: deltas, forward pass, sampling. Called from the executor's thread alone."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import torch
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, Unsupported
from torch import Tensor

from ridgeline_engine.executors.torch_executor.batch import BatchBuilder
from ridgeline_engine.executors.torch_executor.loading import LoadedModel
from ridgeline_engine.executors.torch_executor.sampler import Drawn, Sampler
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.executors.torch_executor.stopwatch import Stopwatch
from ridgeline_engine.seam import (
    LaunchId,
    LayerHook,
    RowPlan,
    RowResult,
    SlotId,
    StepPlan,
    StepResult,
    TokenMask,
)

_KEPT_SAMPLES = 4
"""Launches whose tokens later ones may refer to: more than can be open."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step whose work is handed to the device."""

    drawn: Drawn | None
    """Of the rows that want logits, in their order; None if there are none."""
    stopwatch: Stopwatch

    def result(self, plan: StepPlan) -> StepResult:
        """Waits for the device, then reads what it drew."""
        chosen = iter(() if self.drawn is None else self.drawn.read())
        rows = []
        for row in plan.rows:
            if row.logits == 0:
                rows.append(RowResult(row.slot, row.generation, ()))
                continue
            one = next(chosen)
            tokens = () if one.token is None else (one.token,)
            logprobs = () if one.logprob is None else (one.logprob,)
            rows.append(RowResult(row.slot, row.generation, tokens, logprobs, one.fault))
        return StepResult(plan.launch, tuple(rows), self.stopwatch.elapsed_ms())


class StepRunner:
    """Applies plans to slots, KV and sampler, and runs them. Nothing of it may be used after an error."""

    def __init__(
        self, model: LoadedModel, settings: TorchSettings, *, clock: Clock, layer_hook: LayerHook | None
    ) -> None:
        self._model = model
        self._clock = clock
        self._layer_hook = layer_hook
        self._slots = SlotTable(
            model.groups, max_batch=settings.max_batch, max_context_tokens=model.max_context_tokens
        )
        self._batches = BatchBuilder(self._slots, model.device)
        self._sampler = Sampler(
            vocab_tokens=model.shape.vocab_tokens,
            max_batch=settings.max_batch,
            device=model.device,
            token_ops=model.ops.tokens,
        )
        self._sampled: dict[LaunchId, Tensor] = {}
        self._failed_launch: LaunchId | None = None

    def run(self, plan: StepPlan, masks: Future[Mapping[SlotId, TokenMask]]) -> Outcome:
        """Runs a step; waits for `masks` after the forward pass if some row is sampled.

        Raises InvariantError for a plan that contradicts the slots, Unsupported for what this executor lacks, and
        InvariantError for every step after one that failed, which is not begun.
        """
        if self._failed_launch is not None:
            raise InvariantError(f"launch {plan.launch} follows launch {self._failed_launch}, which failed")
        try:
            return self._run(plan, masks)
        except BaseException:
            self._failed_launch = plan.launch
            raise

    @torch.inference_mode()
    def _run(self, plan: StepPlan, masks: Future[Mapping[SlotId, TokenMask]]) -> Outcome:
        stopwatch = Stopwatch(self._clock, self._model.device)
        stopwatch.start()
        self._apply(plan)
        if not plan.rows:
            stopwatch.stop()
            return Outcome(None, stopwatch)
        self._check(plan.rows)
        batch = self._batches.build(plan.rows, self._sampled)
        logits = self._model.decoder.forward(batch, on_layer=self._on_layer(plan.launch))
        drawn = None
        if len(batch.logit_rows):
            stopwatch.stop()
            ready = masks.result()
            stopwatch.start()
            rows = [row for row in plan.rows if row.logits]
            drawn = self._sampler.sample(logits, rows, ready)
        self._keep(plan, drawn)
        stopwatch.stop()
        return Outcome(drawn, stopwatch)

    def close(self) -> None:
        self._model.kv.drop()

    def _apply(self, plan: StepPlan) -> None:
        for slot in plan.release:
            self._slots.release(slot)
            self._sampler.release(slot)
        for admit in plan.admit:
            self._slots.admit(admit)
            self._sampler.admit(admit)
        for append in plan.appends:
            self._slots.append(append)
        self._model.kv.copy(plan.copies)

    def _check(self, rows: tuple[RowPlan, ...]) -> None:
        for row in rows:
            self._slots.owner(row.slot, row.generation)
            if row.draft_tokens or row.logits > 1:
                raise Unsupported(
                    f"slot {row.slot} wants {row.logits} logits for {row.draft_tokens} drafts: "
                    "the torch executor verifies no drafts"
                )
        self._slots.check_room(rows)

    def _on_layer(self, launch: LaunchId) -> "_LayerCall | None":
        return None if self._layer_hook is None else _LayerCall(self._layer_hook, launch, self._model.device)

    def _keep(self, plan: StepPlan, drawn: Drawn | None) -> None:
        """Keeps what each row drew, 0 for a row that drew nothing."""
        if drawn is None:
            return
        tokens = drawn.tokens
        if len(tokens) < len(plan.rows):
            sampled_rows = [index for index, row in enumerate(plan.rows) if row.logits]
            tokens = tokens.new_zeros(len(plan.rows)).index_copy_(
                0, torch.tensor(sampled_rows, device=tokens.device), tokens
            )
        self._sampled[plan.launch] = tokens
        while len(self._sampled) > _KEPT_SAMPLES:
            del self._sampled[next(iter(self._sampled))]


@dataclass(frozen=True, slots=True)
class _LayerCall:
    hook: LayerHook
    launch: LaunchId
    device: torch.device

    def __call__(self, layer: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()
        self.hook(self.launch, layer)
