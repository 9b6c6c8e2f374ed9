"""Finds blocks for running sequences: who goes, who pauses. Acts on what policy/victims.py decides."""

from collections.abc import Iterable, Mapping

from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.step import StepModel
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.preemption import PreemptionFacts, PreemptionKind
from ridgeline_roofline.decisions.prefill_cost import decode_ms

from ridgeline_engine.drafting import StepDraft
from ridgeline_engine.policy.census import Census
from ridgeline_engine.policy.preemption_log import PreemptionCause
from ridgeline_engine.policy.thresholds import Thresholds
from ridgeline_engine.policy.victims import Situation, choose_victim, facts_of
from ridgeline_engine.queues import Queues
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.seam import LaunchId
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings


class RoomMaker:
    """Holds the facts of one draft between `begin` and its end, and who pauses from step to step."""

    def __init__(self, queues: Queues, thresholds: Thresholds, settings: EngineSettings) -> None:
        self._queues = queues
        self._thresholds = thresholds
        self._preemption = settings.preemption
        self._copy_bytes_per_ms = settings.host_copy_bytes_per_ms
        self._paused: dict[Sequence, None] = {}
        """That lacked a block when they were last looked at; in the order of need."""
        self._forced = False
        self._pause: Decision[PreemptionKind] | None = None
        """Decided in this draft: it holds for all that need blocks after, none of whom could do better."""

    @property
    def short(self) -> bool:
        """Whether blocks were short in this draft: then nobody is admitted."""
        return self._draft.preempted or bool(self._paused)

    def begin(self, draft: StepDraft, model: StepModel, now_ms: float, fence: LaunchId | None) -> None:
        self._draft, self._model, self._now_ms, self._fence = draft, model, now_ms, fence
        self._forced = False
        self._pause = None

    def force(self) -> bool:
        """All that could run pauses, so nothing will ever end: from now on in this draft somebody goes."""
        self._forced = bool(self._paused)
        self._pause = None
        return self._forced

    def make(self, sequence: Sequence, need: Mapping[GroupId, int]) -> bool:
        """Frees `need` for a running sequence; False if it must pause, or had to go itself."""
        pool = self._queues.kv.pool
        while not pool.can_allocate(need):
            if pool.can_allocate(need, once_retired=True):
                # Blocks come back with the next launch that completes: not worth a recomputation.
                return False
            if self._pause is not None and sequence is not self._queues.running[0]:
                self._let_pause(sequence, self._pause)
                return False
            if not self._free_some(sequence):
                return False
        self._paused.pop(sequence, None)
        return True

    def forget(self, sequence: Sequence) -> None:
        """A sequence ends: whatever is kept of it on the host goes too."""
        self._paused.pop(sequence, None)
        self._queues.kv.drop_swapped(sequence)

    def keep_batch_share(
        self, draft: StepDraft, census: Census, model: StepModel, now_ms: float, fence: LaunchId | None
    ) -> None:
        """Preempts batch sequences, the last first, until they hold no more than their share."""
        self.begin(draft, model, now_ms, fence)
        share = self._thresholds.batch_kv(model, census).value
        while census.batch.context_tokens > share and self.take_from_batch(census):
            pass

    def take_from_batch(self, census: Census) -> bool:
        """Preempts the last of the batch class, for interactive ones. False where none runs."""
        batch = [each for each in self._queues.running if each.request.priority is PriorityClass.BATCH]
        if not batch:
            return False
        self._leave_census(census, batch[-1])
        return self._preempt(batch[-1:], PreemptionCause.BATCH_SHARE, wait_ms=None)

    def _leave_census(self, census: Census, sequence: Sequence) -> None:
        census.batch.rows -= 1
        census.batch.context_tokens -= sequence.context_tokens
        if sequence.decoding:
            census.batch.decoding.remove(sequence)
            census.batch.decode_context_tokens -= sequence.context_tokens
        elif sequence in census.prefills:
            census.prefills.remove(sequence)

    def _free_some(self, sequence: Sequence) -> bool:
        """Preempts one. False where nobody goes, or `sequence` itself went."""
        planned = set(self._draft.sequences)
        running = self._queues.running
        junior = [each for each in running if each.rank >= sequence.rank and each not in planned]
        # Who ranks first is never asked to go, not even for itself: it is the one that always gets on.
        possible = [each for each in junior if each is not running[0]]
        wait_ms = None if self._forced or sequence is running[0] else self._wait_ms(sequence)
        batch = [each for each in possible if each.request.priority is PriorityClass.BATCH]
        if batch and sequence.request.priority is PriorityClass.INTERACTIVE:
            # Interactive work neither goes nor pauses while the batch class holds what it lacks.
            possible, wait_ms = batch, None
        if not self._preempt(possible, PreemptionCause.POOL, wait_ms=wait_ms, pausing=sequence):
            return False
        return sequence.state is SequenceState.RUNNING

    def _preempt(
        self,
        possible: Iterable[Sequence],
        cause: PreemptionCause,
        *,
        wait_ms: float | None,
        pausing: Sequence | None = None,
    ) -> bool:
        """Lets the cheapest of `possible` go; False where `pausing` pauses instead."""
        victim = choose_victim(
            self._model, self._price(possible, wait_ms=wait_ms), preemption=self._preemption
        )
        if victim is None or victim.choice.value is PreemptionKind.WAIT:
            if pausing is not None:
                self._pause = None if victim is None else victim.choice
                self._let_pause(pausing, self._pause)
            return False
        self._queues.log.add(victim.sequence, cause, victim.choice, now_ms=self._now_ms)
        self._take_away(victim.sequence, victim.choice.value)
        return True

    def _let_pause(self, sequence: Sequence, choice: Decision[PreemptionKind] | None) -> None:
        if choice is not None and sequence not in self._paused:
            self._queues.log.add(sequence, PreemptionCause.POOL, choice, now_ms=self._now_ms)
        self._paused[sequence] = None

    def _take_away(self, sequence: Sequence, kind: PreemptionKind) -> None:
        queues = self._queues
        queues.stop(sequence, fence=self._fence)
        self._paused.pop(sequence, None)
        if kind is PreemptionKind.SWAP:
            queues.kv.swap_out(sequence, fence=self._fence)
        else:
            queues.kv.release(sequence, fence=self._fence)
        sequence.state = SequenceState.WAITING
        sequence.progress.preemptions += 1
        queues.waiting.add(sequence, resumed=True)
        self._draft.preempted = True

    def _price(
        self, possible: Iterable[Sequence], *, wait_ms: float | None
    ) -> list[tuple[Sequence, PreemptionFacts]]:
        queues = self._queues
        rows = len(queues.running)
        context = sum(each.context_tokens for each in queues.running)
        step_ms = decode_ms(self._model, rows, context)
        away_ms = self._wait_ms(None)
        steps = 0.0 if away_ms is None or step_ms <= 0 else away_ms / step_ms
        situation = Situation(
            groups=queues.kv.groups,
            wanted_tokens=rows * steps,
            copy_bytes_per_ms=self._copy_bytes_per_ms,
            wait_ms=wait_ms,
        )
        return [
            (
                each,
                facts_of(each, situation, can_swap=queues.kv.can_swap_out(each)),
            )
            for each in possible
        ]

    def _wait_ms(self, waits: Sequence | None) -> float | None:
        """Until some other running sequence that is not paused is expected to end; None where there is
        none."""
        queues = self._queues
        rest = [
            queues.output_lengths.remaining_tokens(each.output_tokens, each.max_output_tokens)
            for each in queues.running
            if each is not waits and each not in self._paused
        ]
        if not rest:
            return None
        context = sum(each.context_tokens for each in queues.running)
        return min(rest) * decode_ms(self._model, len(queues.running), context)
