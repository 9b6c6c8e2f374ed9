"""Asks the roofline's decisions for a step's thresholds, and puts the overrides in their place."""

from dataclasses import dataclass
from typing import TypeVar

from ridgeline_contracts.blockhash import GRANULE_TOKENS
from ridgeline_contracts.step import StepModel, StepShape
from ridgeline_roofline.decisions.backlog import Backlog, BacklogFacts, backlog_tokens
from ridgeline_roofline.decisions.batch_cap import BatchCapFacts, batch_cap
from ridgeline_roofline.decisions.chunk_budget import ChunkFacts, chunk_budget_tokens
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.fair_share import FairShareFacts, TokenCosts, token_costs
from ridgeline_roofline.decisions.kv_share import KVShareFacts, batch_kv_tokens, batch_rows_beside
from ridgeline_roofline.decisions.open_launches import OpenLaunchFacts, open_launches
from ridgeline_roofline.decisions.prefill_order import PrefillOrderFacts, overtaking_ratio

from ridgeline_engine.policy.census import Census, ClassCensus
from ridgeline_engine.policy.output_lengths import OutputLengths
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.settings import AsyncScheduling, EngineSettings

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """An answer, and the question it was for."""

    model: StepModel
    granules: int
    cap: Decision[int]
    costs: Decision[TokenCosts]


class Thresholds:
    """Stateless but for one cache: batch cap and token costs change only when the model or the context does."""

    def __init__(
        self, settings: EngineSettings, *, slots: int, pool_tokens: int, longest_tokens: int
    ) -> None:
        self._settings = settings
        self._longest_tokens = longest_tokens
        self._slots, self._pool_tokens = slots, pool_tokens
        self._kept: _Kept | None = None

    def chunk(
        self, model: StepModel, census: Census, planned: StepShape, priority: PriorityClass, *, depth: int
    ) -> Decision[int]:
        """Tokens that one more prompt, `depth` of it computed, may add to the step planned so far.

        The TPOT target is the interactive class's: where none of it decodes, nothing is cut; and batch prompts
        have no floor beside it.
        """
        settings = self._settings
        beside_interactive = census.interactive.decode_rows > 0
        batch = priority is PriorityClass.BATCH
        return chunk_budget_tokens(
            model,
            ChunkFacts(
                decode_rows=planned.decode_rows,
                context_tokens=planned.context_tokens,
                max_step_tokens=settings.max_step_tokens,
                min_chunk_tokens=0 if batch and beside_interactive else settings.min_chunk_tokens,
                tpot_target_ms=settings.tpot_target_ms if beside_interactive else None,
                chunk_context_tokens=depth,
                gap_bound_ms=settings.overrides.gap_bound_ms,
                planned_tokens=planned.prefill_tokens,
                planned_context_tokens=planned.prefill_context_tokens,
            ),
        )

    def batch_rows(self, model: StepModel, census: Census, planned: StepShape) -> int:
        """Batch rows that decode beside what is planned."""
        batch, target_ms = census.batch, self._settings.tpot_target_ms
        room = self._settings.max_step_tokens - planned.decode_rows - planned.prefill_tokens
        rows = max(0, min(batch.rows, room))
        if target_ms is None or census.interactive.decode_rows == 0 or self._batch_kv_is_set:
            return rows
        mean = batch.mean_context_tokens
        return batch_rows_beside(model, planned, rows=rows, mean_context_tokens=mean, target_ms=target_ms)

    def batch_cap(self, model: StepModel, census: Census) -> Decision[int]:
        """Interactive sequences that run at once."""
        return _overridden(self._keep(model, census).cap, "batch_cap", self._settings.overrides.batch_cap)

    def steps_below_cap(self, model: StepModel, census: Census, *, most: int) -> int:
        """For how many of the next `most` steps, each a token longer, the interactive rows stay within the cap."""
        rows, first = census.interactive.rows, census.interactive.mean_context_tokens
        if rows == 0:
            return most
        for mean in range(first, first + most):
            if mean != first and mean % GRANULE_TOKENS != 1:
                continue
            if self.batch_cap(model, Census(ClassCensus(rows=rows, context_tokens=rows * mean))).value < rows:
                return mean - first
        return most

    def token_costs(self, model: StepModel, census: Census) -> Decision[TokenCosts]:
        return self._keep(model, census).costs

    def batch_kv(self, model: StepModel, census: Census, *, mean: int = 0, more: int = 0) -> Decision[int]:
        """KV positions for the batch class. `more`: interactive rows of mean size to leave room for.

        `mean` is the context of a batch row where none runs.
        """
        interactive = census.interactive
        derived = batch_kv_tokens(
            model,
            KVShareFacts(
                interactive_rows=interactive.rows + (more if interactive.rows else 0),
                interactive_context_tokens=interactive.context_tokens
                + more * interactive.mean_context_tokens,
                batch_mean_context_tokens=census.batch.mean_context_tokens or mean,
                pool_tokens=self._pool_tokens,
                tpot_target_ms=self._settings.tpot_target_ms,
            ),
        )
        override = self._settings.overrides.batch_kv_tokens if interactive.rows else None
        return _overridden(derived, "batch_kv_tokens", override)

    def overtaking(self, model: StepModel) -> Decision[float]:
        facts = PrefillOrderFacts(self._longest_tokens, self._settings.ttft_target_ms)
        return _overridden(
            overtaking_ratio(model, facts), "overtaking_ratio", self._settings.overrides.overtaking_ratio
        )

    def backlog(self, model: StepModel, census: Census) -> Decision[Backlog] | None:
        """What may wait under the TTFT target; None where none is set."""
        settings = self._settings
        if settings.ttft_target_ms is None:
            return None
        interactive = census.interactive
        chunk = ChunkFacts(
            decode_rows=interactive.decode_rows,
            context_tokens=interactive.decode_context_tokens,
            max_step_tokens=settings.max_step_tokens,
            min_chunk_tokens=settings.min_chunk_tokens,
            tpot_target_ms=settings.tpot_target_ms,
            chunk_context_tokens=census.prefills[0].planned_tokens if census.prefills else 0,
            gap_bound_ms=settings.overrides.gap_bound_ms,
        )
        facts = BacklogFacts(chunk, settings.ttft_target_ms)
        derived = backlog_tokens(model, facts)
        override = self._settings.overrides.backlog_tokens
        if override is None:
            return derived
        return Decision(
            Backlog(override, derived.value.tokens_per_ms),
            f"backlog_tokens = {override}, as set; derived {derived.derivation}",
        )

    def open_launches(
        self, model: StepModel, census: Census, *, host_ms: float, lengths: OutputLengths
    ) -> Decision[int]:
        """Launches that may be open while the engine steps: 1 runs each step to its end before the next is
        planned."""
        rows = census.interactive.rows + census.batch.rows
        context = census.interactive.context_tokens + census.batch.context_tokens
        derived = open_launches(
            model,
            OpenLaunchFacts(
                rows=rows,
                context_tokens=context // rows if rows else 0,
                host_ms=host_ms,
                mean_output_tokens=lengths.mean_tokens,
                host_share_ratio=self._settings.host_share_ratio,
            ),
        )
        match self._settings.async_scheduling:
            case AsyncScheduling.AUTO:
                return derived
            case AsyncScheduling.ON:
                return _overridden(derived, "open launches", 2)
            case AsyncScheduling.OFF:
                return _overridden(derived, "open launches", 1)

    @property
    def _batch_kv_is_set(self) -> bool:
        """Who sets the share by hand takes its rows as they come."""
        return self._settings.overrides.batch_kv_tokens is not None

    def _keep(self, model: StepModel, census: Census) -> _Kept:
        mean = census.interactive.mean_context_tokens or census.batch.mean_context_tokens
        granules = -(-mean // GRANULE_TOKENS)
        kept = self._kept
        if kept is None or kept.model is not model or kept.granules != granules:
            context = max(1, granules) * GRANULE_TOKENS
            facts = BatchCapFacts(context, self._pool_tokens, self._slots, self._settings.tpot_target_ms)
            cap = batch_cap(model, facts)
            weight = self._settings.overrides.output_weight
            costs = token_costs(model, FairShareFacts(cap.value, context, weight))
            kept = self._kept = _Kept(model, granules, cap, costs)
        return kept


def _overridden(derived: Decision[T], name: str, override: T | None) -> Decision[T]:
    if override is None:
        return derived
    return Decision(override, f"{name} = {override}, as set; derived {derived.derivation}")
