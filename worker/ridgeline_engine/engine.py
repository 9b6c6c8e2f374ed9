"""The engine: requests in, tokens out, one step at a time.

    engine.submit(request)
    while engine.has_work:
        for row in engine.step():
            deliver(row)

A step has two halves, `launch` (plan, hand to the executor) and `complete` (wait, commit). While one launch runs,
the next may be planned and handed over: `step` does so where it pays (decisions/open_launches.py in the roofline).
"""

from collections.abc import Iterable

from ridgeline_contracts.blockhash import HashScope
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    DeadlineExceeded,
    InvalidRequest,
    InvariantError,
    Overloaded,
    RidgelineError,
)
from ridgeline_contracts.step import StepCoefficients

from ridgeline_engine.checks import Limits, check_request
from ridgeline_engine.commit import accept, check_rows, finish_reason
from ridgeline_engine.kv_events import KVEventLog
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.ledger import StepLedger
from ridgeline_engine.masks import MaskSource
from ridgeline_engine.offer import MAX_CHOICES, check_model, offered
from ridgeline_engine.outbox import Outbox
from ridgeline_engine.pipeline import Completion, Pipeline
from ridgeline_engine.policy.preemption_log import PreemptionRecord
from ridgeline_engine.random_bits import request_seed
from ridgeline_engine.request import FinishReason, OutputRow, Request, RequestKey
from ridgeline_engine.scheduler import Scheduler
from ridgeline_engine.seam import Executor, RowPlan, RowResult
from ridgeline_engine.sequence import Family, Progress, Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings
from ridgeline_engine.slots import Slots
from ridgeline_engine.snapshots import EngineCounts, EngineMetrics, LoadSnapshot, StepStats, load_snapshot
from ridgeline_engine.steady import steady_steps

_RETRY_AFTER_MS = 1_000


class Engine:
    """Not thread-safe: all calls come from one thread. After DeviceFault nothing of it may be used."""

    def __init__(
        self, executor: Executor, clock: Clock, settings: EngineSettings, *, masks: MaskSource | None = None
    ) -> None:
        self._clock, self._settings = clock, settings
        self._capabilities = offered(executor.capabilities, settings)
        check_model(executor, settings)
        kv = KVManager(
            executor.kv_groups,
            executor.kv_blocks,
            prefix_cache=settings.prefix_cache,
            event_buffer=settings.kv_event_buffer,
            host_blocks=executor.host_blocks,
        )
        # The last token of a text is sampled, never stored: hence the 1.
        context_tokens = self._capabilities.max_context_tokens
        sequence_tokens = kv.longest_tokens(at_most=context_tokens - 1) + 1
        self._limits = Limits(self._capabilities, sequence_tokens, MAX_CHOICES)
        self._scheduler = Scheduler(
            kv, Slots(self._capabilities.max_batch), settings, longest_tokens=sequence_tokens
        )
        self._ledger = StepLedger(settings.coefficients)
        self._pipeline = Pipeline(executor, clock, masks)
        self._outbox = Outbox(self._scheduler, self._pipeline, self._ledger, clock)
        self._arrivals = 0
        self._draining = False

    @property
    def capabilities(self) -> Capabilities:
        """The executor's, with what the engine adds (choices) or limits (batch). Publish these."""
        return self._capabilities

    @property
    def kv_events(self) -> KVEventLog:
        return self._scheduler.kv.events

    @property
    def step_model(self) -> StepCoefficients:
        """Fitted to the steps measured so far."""
        return self._ledger.coefficients

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to hand out."""
        return bool(self._outbox.families or self._outbox.has_rows or len(self._pipeline))

    def submit(self, request: Request) -> None:
        """Queues a request. Nothing is kept of one that is refused.

        Raises InvalidRequest, Unsupported, or Overloaded while draining and when too many wait.
        """
        if self._draining:
            raise Overloaded("this worker is draining and takes no new work", retry_after_ms=_RETRY_AFTER_MS)
        if request.key in self._outbox.families:
            raise InvalidRequest(
                f"request {request.key.request_id} attempt {request.key.attempt} is already running here",
                param="request_id",
            )
        check_request(request, self._limits)
        waiting = len(self._scheduler.waiting)
        if waiting + request.choices > self._settings.max_waiting:
            raise Overloaded(
                f"{waiting} sequences wait and at most {self._settings.max_waiting} may",
                retry_after_ms=_RETRY_AFTER_MS,
            )
        if (refused := self._scheduler.refusal(request, self.step_model)) is not None:
            raise refused
        self._arrivals += 1
        family = Family(request)
        family.choices |= {choice: self._sequence(family, choice) for choice in range(request.choices)}
        # Nothing of it is known to anybody before all of it is made.
        self._outbox.families[request.key] = family
        for sequence in family.choices.values():
            self._scheduler.add(sequence)
        for sequence in tuple(family.choices.values()):
            self._finish_if_complete(sequence)

    def cancel(self, key: RequestKey) -> bool:
        """Ends what runs under `key`: each choice gets one terminal row from the next step. False if nothing
        does."""
        family = self._outbox.families.get(key)
        if family is None:
            return False
        for sequence in tuple(family.choices.values()):
            self._outbox.end(sequence, FinishReason.CANCELLED)
        return True

    def drain(self) -> None:
        """Refuses new work from now on. What was accepted runs to its end; drained once `has_work` is
        false."""
        self._draining = True

    def step(self) -> list[OutputRow]:
        """Completes a step, with the next one launched before where that pays. Returns the rows of all choices
        that got a token or ended; also rows of earlier cancels."""
        most = self._scheduler.open_launches(self.step_model, self._ledger.host_step_ms)
        while len(self._pipeline) < most and self.launch():
            pass
        return self.complete()

    def launch(self) -> bool:
        """First half: plans a step and hands it to the executor. False where there is nothing to run."""
        started_ms = self._clock.monotonic_ms()
        for sequence in self._scheduler.expired(started_ms):
            self._outbox.end(sequence, FinishReason.ERROR, _deadline_exceeded(sequence, started_ms))
        pipeline = self._pipeline
        draft = self._scheduler.draft(
            self.step_model, started_ms, launch=pipeline.next_launch, fence=pipeline.fence
        )
        self._fail(draft.failed)
        if not draft.rows:
            return False
        release = self._scheduler.slots.drain_releases()
        draft.copies += self._scheduler.kv.drain_copies(draft.launch)
        self._fail(pipeline.start(draft, self.step_model, release=release, started_ms=started_ms))
        return True

    def complete(self) -> list[OutputRow]:
        """Second half: waits for the oldest open launch, if any, and commits it.

        Raises DeviceFault from the executor, InvariantError where it broke the seam.
        """
        completion = self._pipeline.complete()
        if completion is not None:
            self._commit(completion)
        return self._outbox.take()

    def steady_steps(self) -> int:
        """For how many steps the open launch's plan stays the same, if nobody submits or cancels: at least 1. An end
        token may end it earlier. 0 where not exactly one launch is open."""
        opened = self._pipeline.only_open
        if opened is None:
            return 0
        left = self._ledger.steps_to_refit
        return steady_steps(opened, self._scheduler, self.step_model, steps_to_refit=left)

    def commit(self, steps: int) -> list[OutputRow]:
        """Completes the open launch and, at once, the `steps` - 1 steps after it, as that many single steps would:
        for executors that can repeat a step. Stops early where a sequence ends.

        Raises InvariantError for more steps than `steady_steps` says, Unsupported by the executor.
        """
        steady, opened = self.steady_steps(), self._pipeline.only_open
        if opened is None or not 1 <= steps <= steady:
            raise InvariantError(f"commit({steps}): the plan stays the same for {steady} steps")
        rows = self.complete()
        for _ in range(steps - 1):
            if any(each.state is not SequenceState.RUNNING for each in opened.sequences):
                break
            now_ms, model = self._clock.monotonic_ms(), self.step_model
            launch = self._pipeline.next_launch
            draft = self._scheduler.repeat(opened.sequences, model, now_ms, launch=launch)
            self._commit(self._pipeline.again(draft, model, started_ms=now_ms))
        return rows + self._outbox.take()

    def load(self) -> LoadSnapshot:
        """The load report's facts, now."""
        return load_snapshot(self._scheduler, self.step_model, draining=self._draining)

    def derivations(self) -> tuple[str, ...]:
        """How the next step's thresholds come about, in words: for people who ask why."""
        return self._scheduler.derivations(self.step_model, host_ms=self._ledger.host_step_ms)

    @property
    def preemption_trace(self) -> tuple[PreemptionRecord, ...]:
        """The newest preemptions and pauses, each with the numbers it was decided by."""
        return self._scheduler.log.trace

    @property
    def last_step(self) -> tuple[int, StepStats | None]:
        """How many steps were committed, and the newest."""
        return self._ledger.steps, self._ledger.last_step

    def counts(self) -> EngineCounts:
        """Preemptions, wasted rows and faults since the start."""
        return self._ledger.counts(self._scheduler.log)

    def metrics(self) -> EngineMetrics:
        """All counters since the start."""
        return self._ledger.metrics(
            self._scheduler.log, waiting=len(self._scheduler.waiting), running=len(self._scheduler.running)
        )

    def clear_prefix_cache(self) -> None:
        """Forgets all cached KV: nothing computed before is hit again."""
        self._scheduler.kv.clear()

    def check(self) -> None:
        """Raises InvariantError unless everything the engine holds is consistent. For tests and idle
        moments."""
        self._scheduler.check()
        live = [each for family in self._outbox.families.values() for each in family.choices.values()]
        queued = [*self._scheduler.waiting, *self._scheduler.running]
        if sorted(map(id, live)) != sorted(map(id, queued)):
            raise InvariantError("the requests and the queues name different sequences")

    def close(self) -> None:
        """Closes the executor. Open requests get no more rows."""
        self._pipeline.close()

    def _sequence(self, family: Family, choice: int) -> Sequence:
        request, sampling = family.request, family.request.sampling
        emitted = request.emitted[choice] if choice < len(request.emitted) else ()
        return Sequence(
            family=family,
            request=request,
            prompt_tokens=len(request.prompt),
            choice=choice,
            rank=self._scheduler.rank(
                request,
                arrival=self._arrivals,
                choice=choice,
                tokens=len(request.prompt) + len(emitted),
                model=self.step_model,
                now_ms=self._clock.monotonic_ms(),
            ),
            seed=request_seed(request.key.request_id) if sampling.seed is None else sampling.seed,
            max_output_tokens=min(sampling.max_tokens, self._limits.sequence_tokens - len(request.prompt)),
            scope=HashScope(request.salt, self._settings.weights_revision, request.adapter_revision),
            end_token_ids=frozenset(
                (*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._settings.eos_token_ids))
            ),
            progress=Progress(self._clock.monotonic_ms()),
            tokens=[*request.prompt, *emitted],
            delivered_tokens=len(emitted),
        )

    def _finish_if_complete(self, sequence: Sequence) -> None:
        """A retry may bring a choice whose last token had already ended it."""
        reason = finish_reason(sequence) if sequence.output_tokens else None
        if reason is not None:
            self._outbox.end(sequence, reason)

    def _commit(self, completion: Completion) -> None:
        opened, result = completion.opened, completion.result
        self._scheduler.slots.retire(result.launch)
        self._scheduler.kv.retire(result.launch)
        now_ms = completion.completed_ms
        check_rows(opened.plan.rows, result.rows, vocab_tokens=self._capabilities.vocab_tokens)
        for sequence, row, row_result in zip(opened.sequences, opened.plan.rows, result.rows, strict=True):
            if sequence.slot != row.slot or sequence.generation != row.generation:
                self._ledger.late_results += 1
                continue
            try:
                self._commit_row(sequence, row, row_result, now_ms)
            except InvariantError:
                raise
            except Exception as error:  # noqa: BLE001 - ends this request alone
                self._outbox.fail(sequence, error)
        self._fail(self._pipeline.sample_next())
        self._ledger.record(completion, now_ms=self._clock.monotonic_ms())

    def _commit_row(self, sequence: Sequence, row: RowPlan, result: RowResult, now_ms: float) -> None:
        if result.fault is not None:
            sequence.progress.computed_tokens += len(row.tokens)
            self._ledger.row_faults += 1
            self._scheduler.kv.distrust(sequence)
            error = RidgelineError(f"choice {sequence.choice} failed on the device: {result.fault}")
            self._outbox.end(sequence, FinishReason.ERROR, error)
            return
        kept, reason = accept(sequence, row, result, now_ms=now_ms)
        self._scheduler.kv.store(sequence, fence=self._pipeline.fence)
        if kept:
            self._outbox.deliver(sequence, result, kept, reason)

    def _fail(self, failed: Iterable[tuple[Sequence, Exception]]) -> None:
        for sequence, error in failed:
            self._outbox.fail(sequence, error)


def _deadline_exceeded(sequence: Sequence, now_ms: float) -> DeadlineExceeded:
    waited_ms = now_ms - sequence.progress.received_ms
    return DeadlineExceeded(
        f"the deadline passed after {waited_ms:.0f} ms in the queue, before the prompt was started: "
        "allow more time",
        retry_after_ms=_RETRY_AFTER_MS,
    )
