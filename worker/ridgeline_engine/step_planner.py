"""Fills a step: rows that decode, chunks of prompts, and who is let in beside them."""

from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.step import StepModel
from ridgeline_roofline.decisions.admission_reserve import admission_reserve_blocks
from ridgeline_roofline.decisions.fair_share import TokenCosts

from ridgeline_engine.drafting import StepDraft
from ridgeline_engine.kv_search import KVStart
from ridgeline_engine.policy.census import Census
from ridgeline_engine.policy.ranks import Rank
from ridgeline_engine.policy.room import RoomMaker
from ridgeline_engine.policy.thresholds import Thresholds
from ridgeline_engine.queues import Queues
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.seam import SlotAdmit, SlotId
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings


def _attained(sequence: Sequence) -> tuple[int, Rank]:
    """By tokens received: who has had most can best bear a pause, which its mean gap hardly shows."""
    return (sequence.output_tokens, sequence.rank)


class _RequestFault(Exception):
    """Of the host, while it worked on what one request brought; nothing was changed yet."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class Step:
    """A step in the making, and what it is made from."""

    draft: StepDraft
    census: Census
    model: StepModel
    costs: TokenCosts
    now_ms: float
    blocked: bool = False
    """Slots, tokens or blocks are used up: what waits behind may not overtake."""


class StepPlanner:
    """Changes queues and sequences as a step needs it, one priority class after the other."""

    def __init__(
        self, queues: Queues, room: RoomMaker, thresholds: Thresholds, settings: EngineSettings, *, fair: bool
    ) -> None:
        self._queues = queues
        self._room = room
        self._thresholds = thresholds
        self._fair = fair
        self._eos_token_ids = settings.eos_token_ids

    def plan_decode(self, step: Step, priority: PriorityClass) -> None:
        decoding = step.census.of(priority).decoding
        if not decoding:
            return
        paused = self._paused(step, priority)
        for sequence in decoding:
            # An earlier one in this loop may have preempted it.
            if sequence.state is SequenceState.RUNNING and sequence not in paused:
                self.plan_decode_row(step, sequence)

    def plan_decode_row(self, step: Step, sequence: Sequence) -> None:
        """One token of a running sequence, if there is a block for it."""
        end = sequence.planned_tokens + 1
        if end > sequence.capacity_tokens and not self._grow(step, sequence, end):
            return
        if end > sequence.charged_tokens and sequence.account is not None:
            sequence.account.charge(step.costs.output_token_ms + end * step.costs.output_context_ms)
            sequence.charged_tokens = end
        step.draft.add_decode(sequence)

    def _paused(self, step: Step, priority: PriorityClass) -> frozenset[Sequence]:
        """Decode rows that sit this step out: those that have had most, as they can best bear it."""
        decoding = step.census.of(priority).decoding
        if priority is PriorityClass.INTERACTIVE:
            most = self._thresholds.batch_cap(step.model, step.census).value
        else:
            most = self._thresholds.batch_rows(step.model, step.census, step.draft.shape)
        if len(decoding) <= most:
            return frozenset()
        return frozenset(sorted(decoding, key=_attained)[most:])

    def _grow(self, step: Step, sequence: Sequence, tokens: int) -> bool:
        """Blocks for the first `tokens` positions; False where there are none."""
        assert sequence.slot is not None
        need = self._queues.kv.growth(sequence, tokens)
        if not self._room.make(sequence, need):
            return False
        step.draft.appends += self._queues.kv.grow(sequence, need, sequence.slot)
        return True

    def plan_prompts(self, step: Step, priority: PriorityClass) -> None:
        """Chunks of running and of waiting prompts of a class, in one order; none is admitted while blocks
        are short."""
        mine = [each for each in step.census.prefills if each.request.priority is priority]
        running = sorted(mine, key=self._turn, reverse=True)
        if not self._room.short and not step.blocked:
            self._admit(step, running, priority)
        while running:
            self._plan_chunk(step, running.pop())

    def _admit(self, step: Step, running: list[Sequence], priority: PriorityClass) -> None:
        """Admits what waits, each after those of `running` whose turn comes before."""
        for sequence in self._queues.waiting.candidates(priority):
            while running and self._turn(running[-1]) < self._turn(sequence):
                self._plan_chunk(step, running.pop())
            if self._chunk(step, priority, depth=0) <= 0 or not self._slot_for(step, priority):
                step.blocked = True
                return
            if not self._within_class_limits(sequence, step):
                return
            parent = self._prompt_parent(sequence)
            if parent is not None and parent.computed_tokens < sequence.prompt_tokens:
                # Its sibling is computing the same prompt: soon there is KV to share.
                continue
            if self._queues.kv.still_awaits(sequence):
                continue
            try:
                start = self._start(sequence, parent)
            except _RequestFault as fault:
                step.draft.failed.append((sequence, fault.error))
                continue
            if start is not None and parent is None and self._queues.kv.awaits(sequence, start):
                # One that is ahead computes what comes next: twice would take the device twice as long.
                continue
            if not self._blocks_for(step, sequence, start):
                # No overtaking: a long prompt would wait for ever.
                step.blocked = True
                return
            self._plan_chunk(step, sequence)

    def _slot_for(self, step: Step, priority: PriorityClass) -> bool:
        """Whether a slot is free. An interactive sequence takes one from the batch class, for the next step."""
        if self._queues.slots.free:
            return True
        if priority is PriorityClass.INTERACTIVE:
            self._room.take_from_batch(step.census)
        return self._queues.slots.free > 0

    def _blocks_for(self, step: Step, sequence: Sequence, start: KVStart | None) -> bool:
        """Lets the sequence in if there are blocks; an interactive one takes them from the batch class."""
        while not self._let_in(step, sequence, start):
            # Blocks that come back with the next launch that completes are not worth a recomputation.
            if sequence.request.priority is PriorityClass.BATCH or self._fits(
                sequence, start, once_retired=True
            ):
                return False
            if not self._room.take_from_batch(step.census):
                return False
        return True

    def _fits(self, sequence: Sequence, start: KVStart | None, *, once_retired: bool = False) -> bool:
        """Whether there are blocks for all known tokens, now or once the open launches have completed."""
        reserve_blocks = admission_reserve_blocks(len(self._queues.running)).value
        return self._queues.kv.can_admit(
            sequence, start, reserve_blocks=reserve_blocks, once_retired=once_retired
        )

    def _let_in(self, step: Step, sequence: Sequence, start: KVStart | None) -> bool:
        """Gives a slot and blocks for all known tokens; False where there are not enough blocks."""
        if not self._fits(sequence, start):
            return False
        if start is None:
            slot = self._give_slot(step, sequence)
            step.draft.appends += self._queues.kv.swap_in(sequence, slot)
            return True
        slot = self._give_slot(step, sequence)
        step.draft.appends += self._queues.kv.admit(sequence, start, slot)
        if sequence.progress.first_launch_ms is None:
            sequence.progress.first_launch_ms = step.now_ms
            sequence.progress.cached_tokens = min(start.tokens, sequence.prompt_tokens)
            step.draft.cached_tokens += sequence.progress.cached_tokens
        return True

    def _within_class_limits(self, sequence: Sequence, step: Step) -> bool:
        """Interactive: below the batch cap. Batch: within its share of the KV, with room for one more
        interactive row, so that it is not preempted at the next arrival."""
        census = step.census
        if sequence.request.priority is PriorityClass.INTERACTIVE:
            return census.interactive.rows < self._thresholds.batch_cap(step.model, census).value
        tokens = len(sequence.tokens)
        share = self._thresholds.batch_kv(step.model, census, mean=tokens, more=1).value
        return census.batch.context_tokens + tokens <= share

    def _turn(self, sequence: Sequence) -> tuple[bool, float, Rank]:
        """Order among a class's prompts: who ran before, then the tenant's turn, then rank."""
        fresh = sequence.progress.preemptions == 0
        served_ms = 0.0
        if self._fair and fresh and sequence.account is not None:
            served_ms = sequence.account.served_ms
        return (fresh, served_ms, sequence.rank)

    def _plan_chunk(self, step: Step, sequence: Sequence) -> None:
        if sequence.state is not SequenceState.RUNNING:
            return
        start = sequence.planned_tokens
        budget = self._chunk(step, sequence.request.priority, depth=start)
        end = start + min(sequence.uncomputed_tokens, budget)
        if end > max(start, sequence.capacity_tokens):
            # Tables of window groups grow with the chunks: what fits is computed, but at least one token.
            end = max(start + 1, self._queues.kv.reach(sequence, end))
        if end <= start or (end > sequence.capacity_tokens and not self._grow(step, sequence, end)):
            return
        # Of a chunk that is in part a recomputation, the new part is charged.
        known = max(start, sequence.charged_tokens)
        if end > known and sequence.account is not None:
            costs = step.costs
            cost_ms = costs.decode_ms(end) if sequence.decoding else costs.prefill_ms(end - known, known)
            sequence.account.charge(cost_ms)
            sequence.charged_tokens = end
        step.draft.add_chunk(sequence, end - start)

    def _chunk(self, step: Step, priority: PriorityClass, *, depth: int) -> int:
        return self._thresholds.chunk(step.model, step.census, step.draft.shape, priority, depth=depth).value

    def _prompt_parent(self, sequence: Sequence) -> Sequence | None:
        """The running sibling that has computed most, if any runs."""
        if sequence.request.choices == 1:
            return None
        running = [each for each in sequence.family.choices.values() if each.state is SequenceState.RUNNING]
        return max(running, key=lambda each: each.computed_tokens, default=None)

    def _start(self, sequence: Sequence, parent: Sequence | None) -> KVStart | None:
        """What is there of a waiting sequence on the device; None where it comes back from the host."""
        if self._queues.kv.is_swapped(sequence):
            return None
        try:
            found = self._queues.kv.find(sequence)
            if parent is None or found.tokens >= sequence.prompt_tokens - 1:
                return found
            return self._queues.kv.fork(sequence, parent=parent)
        except InvariantError:
            raise
        except Exception as error:
            raise _RequestFault(error) from error

    def _give_slot(self, step: Step, sequence: Sequence) -> SlotId:
        slot = self._queues.start(sequence)
        step.draft.admit.append(self._slot_admit(sequence))
        mine = step.census.of(sequence.request.priority)
        mine.rows += 1
        mine.context_tokens += len(sequence.tokens)
        sequence.family.admitted = True
        return slot

    def _slot_admit(self, sequence: Sequence) -> SlotAdmit:
        assert sequence.slot is not None
        assert sequence.generation is not None
        sampling = sequence.request.sampling
        return SlotAdmit(
            slot=sequence.slot,
            generation=sequence.generation,
            sampling=sampling,
            seed=sequence.seed,
            choice=sequence.choice,
            prompt=sequence.request.prompt,
            output=tuple(sequence.tokens[sequence.prompt_tokens :]),
            eos_token_ids=() if sampling.ignore_eos else self._eos_token_ids,
        )
