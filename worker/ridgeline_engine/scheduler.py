"""What runs next: running sequences first, then waiting ones, within tokens, slots and blocks.

Sequences are visited in the order of their rank. A decode row takes one token. Prefills share a chunk budget
that is asked of the roofline's decisions, so that they do not stretch the steps of those that decode. When a
running sequence needs a block and none is free, the one of the highest rank is preempted: it gives up its
blocks and its slot, keeps what it emitted and its place in the queue, and is computed again later (mostly
from the cache).

The lowest-ranked running sequence can always go on, because no admitted sequence is longer than the pool:
admitted work always finishes.
"""

from bisect import insort
from collections.abc import Iterator, Mapping
from math import inf

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.step import StepModel
from ridgeline_roofline.decisions.admission_reserve import admission_reserve_blocks
from ridgeline_roofline.decisions.chunk import ChunkFacts, chunk_budget_tokens
from ridgeline_roofline.decisions.decision import Decision

from ridgeline_engine.drafting import StepDraft
from ridgeline_engine.kv_manager import KVManager, KVStart
from ridgeline_engine.policy.ranks import Rank
from ridgeline_engine.seam import LaunchId, SlotAdmit
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings
from ridgeline_engine.slots import Slots


def _rank(sequence: Sequence) -> Rank:
    return sequence.rank


class Scheduler:
    """Queues, slots and KV. It changes sequences, and draws up steps; it never talks to the executor."""

    def __init__(self, kv: KVManager, slots: Slots, settings: EngineSettings) -> None:
        self.kv = kv
        self.slots = slots
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._settings = settings
        self._next_deadline_ms = inf

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_rank)
        if sequence.request.deadline_ms is not None:
            self._next_deadline_ms = min(self._next_deadline_ms, sequence.request.deadline_ms)

    def draft(self, model: StepModel, now_ms: float, *, fence: LaunchId | None) -> StepDraft:
        """The next step; without rows where nothing can run. `fence` is the newest open launch."""
        draft = StepDraft()
        prefills = self.waiting or not all(sequence.decoding for sequence in self.running)
        budget = self.chunk_budget(model).value if prefills else 0
        for sequence in tuple(self.running):
            # An earlier one in this loop may have preempted it.
            if sequence.state is SequenceState.RUNNING:
                budget -= self._continue(draft, sequence, budget, fence)
        if not draft.preempted:
            self._admit_waiting(draft, budget, now_ms)
        return draft

    def end(self, sequence: Sequence, *, fence: LaunchId | None) -> None:
        """Takes a sequence out of its queue and gives back all that it holds."""
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._give_back(sequence, fence)
        else:
            raise InvariantError("a sequence ended twice")
        sequence.state = SequenceState.FINISHED

    def expired(self, now_ms: float) -> Iterator[Sequence]:
        """Waiting sequences of requests that never ran and whose deadline has passed."""
        if now_ms < self._next_deadline_ms:
            return
        self._next_deadline_ms = inf
        for sequence in tuple(self.waiting):
            deadline_ms = sequence.request.deadline_ms
            if deadline_ms is None or sequence.family.admitted:
                continue
            if deadline_ms <= now_ms:
                yield sequence
            else:
                self._next_deadline_ms = min(self._next_deadline_ms, deadline_ms)

    def check(self) -> None:
        """Raises InvariantError unless queues, slots, blocks and caches are consistent."""
        for name, queue, state in (
            ("waiting", self.waiting, SequenceState.WAITING),
            ("running", self.running, SequenceState.RUNNING),
        ):
            if [each.rank for each in queue] != sorted(each.rank for each in queue):
                raise InvariantError(f"the {name} queue is out of order")
            if any(each.state is not state for each in queue):
                raise InvariantError(f"the {name} queue holds a sequence that is not {name}")
        if any(each.tables or each.slot is not None for each in self.waiting):
            raise InvariantError("a waiting sequence holds blocks or a slot")
        for sequence in self.running:
            if not sequence.computed_tokens <= sequence.planned_tokens <= len(sequence.tokens):
                raise InvariantError("a sequence computed more than was planned, or planned more than it has")
        self.slots.check()
        self.kv.check(self.running)

    def chunk_budget(self, model: StepModel) -> Decision[int]:
        """Prefill tokens of the next step, as things stand."""
        decoding = [sequence for sequence in self.running if sequence.decoding]
        facts = ChunkFacts(
            decode_rows=len(decoding),
            context_tokens=sum(sequence.planned_tokens + 1 for sequence in decoding),
            max_step_tokens=self._settings.max_step_tokens,
            min_chunk_tokens=self._settings.min_chunk_tokens,
            tpot_target_ms=self._settings.tpot_target_ms,
            chunk_context_tokens=next((each.planned_tokens for each in self.running if not each.decoding), 0),
        )
        return chunk_budget_tokens(model, facts)

    def admission_reserve(self) -> Decision[int]:
        """Blocks of each group that an admission must leave, as things stand."""
        return admission_reserve_blocks(len(self.running))

    def _continue(self, draft: StepDraft, sequence: Sequence, budget: int, fence: LaunchId | None) -> int:
        """Plans the next part of a running sequence. Returns the prefill tokens that it took."""
        if sequence.uncomputed_tokens == 0:
            return 0
        if not sequence.decoding:
            count = min(sequence.uncomputed_tokens, budget)
            if count > 0:
                draft.add_row(sequence, count)
            return max(count, 0)
        if sequence.planned_tokens == sequence.capacity_tokens:
            assert sequence.slot is not None
            need = self.kv.growth(sequence, sequence.planned_tokens + 1)
            if not self._make_room(draft, sequence, need, fence):
                return 0
            draft.appends += self.kv.grow(sequence, need, sequence.slot)
        draft.add_row(sequence, 1)
        return 0

    def _make_room(
        self, draft: StepDraft, sequence: Sequence, need: Mapping[GroupId, int], fence: LaunchId | None
    ) -> bool:
        """Preempts from the end of the queue until `need` is free; False if `sequence` must wait or had to go."""
        while not self.kv.pool.can_allocate(need):
            if self.kv.pool.has_quarantined:
                # Blocks come back with the next launch that completes: not worth a recomputation.
                return False
            victim = self.running[-1]
            self._preempt(victim, fence)
            draft.preempted = True
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence, fence: LaunchId | None) -> None:
        self.running.remove(sequence)
        self._give_back(sequence, fence)
        sequence.state = SequenceState.WAITING
        sequence.progress.preemptions += 1
        self.preemptions += 1
        self.add(sequence)

    def _give_back(self, sequence: Sequence, fence: LaunchId | None) -> None:
        assert sequence.slot is not None
        self.kv.release(sequence, fence=fence)
        self.slots.give_back(sequence.slot, fence=fence)
        sequence.slot = sequence.generation = None

    def _admit_waiting(self, draft: StepDraft, budget: int, now_ms: float) -> None:
        for sequence in tuple(self.waiting):
            if budget <= 0 or self.slots.free == 0:
                return
            parent = self._prompt_parent(sequence)
            if parent is not None and parent.computed_tokens < sequence.prompt_tokens:
                # Its sibling is computing the same prompt: soon there is KV to share.
                continue
            start = self._start(sequence, parent)
            if not self.kv.can_admit(sequence, start, reserve_blocks=self.admission_reserve().value):
                # No overtaking: a long prompt would wait for ever.
                return
            self._admit(draft, sequence, start, now_ms)
            count = min(sequence.uncomputed_tokens, budget)
            draft.add_row(sequence, count)
            budget -= count

    def _prompt_parent(self, sequence: Sequence) -> Sequence | None:
        """The running sibling that has computed most, if any runs."""
        running = [each for each in sequence.family.choices.values() if each.state is SequenceState.RUNNING]
        return max(running, key=lambda each: each.computed_tokens, default=None)

    def _start(self, sequence: Sequence, parent: Sequence | None) -> KVStart:
        found = self.kv.find(sequence)
        if parent is None or found.tokens >= sequence.prompt_tokens - 1:
            return found
        return self.kv.fork(sequence, parent=parent)

    def _admit(self, draft: StepDraft, sequence: Sequence, start: KVStart, now_ms: float) -> None:
        self.waiting.remove(sequence)
        lease = self.slots.take()
        sequence.slot, sequence.generation = lease.slot, lease.generation
        sequence.state = SequenceState.RUNNING
        insort(self.running, sequence, key=_rank)
        appends, copies = self.kv.admit(sequence, start, lease.slot)
        draft.appends += appends
        draft.copies += copies
        draft.admit.append(self._slot_admit(sequence))
        sequence.family.admitted = True
        if sequence.progress.first_launch_ms is None:
            sequence.progress.first_launch_ms = now_ms
            sequence.progress.cached_tokens = min(start.tokens, sequence.prompt_tokens)
            draft.cached_tokens += sequence.progress.cached_tokens

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
            eos_token_ids=() if sampling.ignore_eos else self._settings.eos_token_ids,
        )
