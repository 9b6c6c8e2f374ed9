"""What runs next: rows that decode first, then prompts, within tokens, slots and blocks.

    classes   interactive sequences first; batch ones get what they leave of the step and its target.
    decode    running sequences in the order of rank, one token each; rows beyond the batch cap pause, those that
              have had most first.
    prompts   running and waiting ones together, in the order of tenant's turn and rank; each gets a chunk that
              keeps the step within the target for those that decode (step_planner.py).
    blocks    when a running sequence needs one and none is free, the sequence for which it is cheapest goes, or
              the one in need pauses (policy/room.py). It keeps what it emitted and its place.

The running sequence of the lowest rank can always go on: it is never chosen to go, and no admitted sequence is
longer than the pool. So admitted work always finishes.
"""

from collections.abc import Iterable, Iterator
from math import inf

from ridgeline_contracts.errors import InvariantError, Overloaded
from ridgeline_contracts.step import StepModel, StepShape
from ridgeline_roofline.decisions.admission_reserve import admission_reserve_blocks
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import prefill_ms

from ridgeline_engine.drafting import StepDraft
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.policy.census import Census, take_census
from ridgeline_engine.policy.ranks import QueueFacts, Rank, policy_named
from ridgeline_engine.policy.room import RoomMaker
from ridgeline_engine.policy.thresholds import Thresholds
from ridgeline_engine.policy.victims import check_preemption
from ridgeline_engine.queues import Queues
from ridgeline_engine.request import PriorityClass, Request
from ridgeline_engine.seam import LaunchId
from ridgeline_engine.sequence import Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings
from ridgeline_engine.slots import Slots
from ridgeline_engine.step_planner import Step, StepPlanner


class Scheduler:
    """Queues, slots and KV. It changes sequences, and draws up steps; it never talks to the executor."""

    def __init__(self, kv: KVManager, slots: Slots, settings: EngineSettings, *, longest_tokens: int) -> None:
        """`longest_tokens`: what the model and the pool allow one sequence."""
        check_preemption(settings.preemption)
        self._settings = settings
        self._policy = policy_named(settings.policy)
        queues = self._queues = Queues(kv, slots, fair=self._policy.fair)
        self.kv, self.slots = kv, slots
        self.waiting, self.running = queues.waiting, queues.running
        self.accounts, self.log = queues.accounts, queues.log
        self.thresholds = Thresholds(
            settings,
            slots=slots.total,
            pool_tokens=kv.capacity_tokens(longest_tokens=longest_tokens),
            longest_tokens=longest_tokens,
        )
        self._room = RoomMaker(queues, self.thresholds, settings)
        self._planner = StepPlanner(queues, self._room, self.thresholds, settings, fair=self._policy.fair)
        self._next_deadline_ms = inf
        self._kept_open: tuple[StepModel, int, int] | None = None

    @property
    def preemptions(self) -> int:
        """Sequences that lost slot and blocks and had to come back."""
        return self.log.preempted

    def rank(
        self, request: Request, *, arrival: int, choice: int, tokens: int, model: StepModel, now_ms: float
    ) -> Rank:
        """The place of a new sequence, for as long as it lives. `tokens` of it are known."""
        facts = QueueFacts(
            request.priority,
            arrival,
            choice,
            received_ms=now_ms,
            prefill_ms=prefill_ms(model, tokens),
            overtaking_ratio=self.thresholds.overtaking(model).value,
        )
        return self._policy.rank(facts)

    def refusal(self, request: Request, model: StepModel) -> Overloaded | None:
        """Why an interactive request cannot have its first token in time, if so, and when to come back.

        Where nothing waits it is let in: no later attempt would fare better.
        """
        if request.priority is not PriorityClass.INTERACTIVE or self._settings.ttft_target_ms is None:
            return None
        census = take_census(self.running)
        backlog = self.thresholds.backlog(model, census)
        waiting = self.waiting.tokens(PriorityClass.INTERACTIVE) + census.interactive_prefill_tokens
        excess = 0 if backlog is None else waiting + len(request.prompt) - backlog.value.tokens
        if backlog is None or waiting == 0 or excess <= 0:
            return None
        return Overloaded(
            f"{waiting} prompt tokens wait and {len(request.prompt)} more would miss the first-token target: "
            f"{backlog.derivation}; send it again later or to another worker",
            retry_after_ms=max(1, round(backlog.value.drain_ms(min(excess, waiting)))),
        )

    def add(self, sequence: Sequence) -> None:
        """A new sequence starts to wait."""
        sequence.account = self.accounts.enter(sequence.request.tenant, sequence.request.weight)
        self.waiting.add(sequence)
        if sequence.request.deadline_ms is not None:
            self._next_deadline_ms = min(self._next_deadline_ms, sequence.request.deadline_ms)

    def draft(
        self, model: StepModel, now_ms: float, *, launch: LaunchId, fence: LaunchId | None
    ) -> StepDraft:
        """The step of `launch`; without rows where nothing can run. `fence` is the newest open launch."""
        draft = StepDraft(launch)
        census = take_census(self.running)
        if census.batch.rows and census.interactive.rows:
            self._room.keep_batch_share(draft, census, model, now_ms, fence)
        self._room.begin(draft, model, now_ms, fence)
        costs = self.thresholds.token_costs(model, census).value
        step = Step(draft, census, model, costs, now_ms)
        for priority in PriorityClass:
            self._planner.plan_decode(step, priority)
            self._planner.plan_prompts(step, priority)
        if not draft.rows and fence is None and self._room.force():
            for priority in PriorityClass:
                self._planner.plan_decode(step, priority)
        return draft

    def repeat(
        self, sequences: Iterable[Sequence], model: StepModel, now_ms: float, *, launch: LaunchId
    ) -> StepDraft:
        """The step of `launch` as one that all of `sequences`, and nobody else, decode in: where `steady_steps`
        says that it is so, what `draft` would give."""
        draft, census = StepDraft(launch), take_census(self.running)
        self._room.begin(draft, model, now_ms, None)
        step = Step(draft, census, model, self.thresholds.token_costs(model, census).value, now_ms)
        for sequence in sequences:
            self._planner.plan_decode_row(step, sequence)
        return draft

    def end(self, sequence: Sequence, *, fence: LaunchId | None) -> None:
        """Takes a sequence out of its queue and gives back all that it holds."""
        self._room.forget(sequence)
        if sequence.state is SequenceState.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is SequenceState.RUNNING:
            self._queues.stop(sequence, fence=fence)
            self.kv.release(sequence, fence=fence)
            self._queues.output_lengths.add(sequence.output_tokens)
        else:
            raise InvariantError("a sequence ended twice")
        if sequence.account is not None:
            self.accounts.leave(sequence.account)
        sequence.state = SequenceState.FINISHED

    def expired(self, now_ms: float) -> Iterator[Sequence]:
        """Waiting sequences of requests that never ran and whose deadline has passed."""
        if now_ms < self._next_deadline_ms:
            return
        self._next_deadline_ms = inf
        for sequence in self.waiting:
            deadline_ms = sequence.request.deadline_ms
            if deadline_ms is None or sequence.family.admitted:
                continue
            if deadline_ms <= now_ms:
                yield sequence
            else:
                self._next_deadline_ms = min(self._next_deadline_ms, deadline_ms)

    def check(self) -> None:
        """Raises InvariantError unless queues, slots, blocks, caches and accounts are consistent."""
        self._queues.check()

    def open_launches(self, model: StepModel, host_ms: float) -> int:
        """How many launches may be open while the engine steps. Decided anew when the step model was fitted again
        or as many sequences do not run any more."""
        rows, kept = len(self.running), self._kept_open
        if kept is None or kept[0] is not model or kept[1] != rows:
            value = self._open_launches(model, take_census(self.running), host_ms).value
            kept = self._kept_open = (model, rows, value)
        return kept[2]

    def _open_launches(self, model: StepModel, census: Census, host_ms: float) -> Decision[int]:
        lengths = self._queues.output_lengths
        return self.thresholds.open_launches(model, census, host_ms=host_ms, lengths=lengths)

    def derivations(self, model: StepModel, *, host_ms: float) -> tuple[str, ...]:
        """How the next step's thresholds come about, as things stand."""
        census, thresholds = take_census(self.running), self.thresholds
        depth = census.prefills[0].planned_tokens if census.prefills else 0
        rows = census.interactive
        planned = StepShape(rows.decode_rows, rows.decode_context_tokens)
        backlog = thresholds.backlog(model, census)
        return (
            thresholds.chunk(model, census, planned, PriorityClass.INTERACTIVE, depth=depth).derivation,
            admission_reserve_blocks(len(self.running)).derivation,
            thresholds.batch_cap(model, census).derivation,
            thresholds.batch_kv(model, census).derivation,
            thresholds.overtaking(model).derivation,
            thresholds.token_costs(model, census).derivation,
            "backlog: no TTFT target is set, nothing is refused" if backlog is None else backlog.derivation,
            self._open_launches(model, census, host_ms).derivation,
        )
