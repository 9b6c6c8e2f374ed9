"""The engine: requests in, tokens out, one step at a time.

    engine.submit(request)
    while engine.has_work:
        for row in engine.step():
            deliver(row)

A step has two halves, `launch` (plan, hand to the executor) and `complete` (wait, commit). `step` runs one
after the other; since slots carry generations and freed pages wait for their launch, a caller may keep two
launches open.
"""

from collections import deque
from dataclasses import replace

from ridgeline_contracts.blockhash import GRANULE_TOKENS, HashScope
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    DeadlineExceeded,
    InvalidRequest,
    InvariantError,
    Overloaded,
    RidgelineError,
    SettingsError,
)
from ridgeline_contracts.step import StepCoefficients

from ridgeline_engine.checks import Limits, check_request
from ridgeline_engine.commit import accept, advance, check_row, finish_reason
from ridgeline_engine.drafting import OpenLaunch
from ridgeline_engine.kv_events import KVEventLog
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.ledger import StepLedger
from ridgeline_engine.policy.preemption_log import PreemptionRecord
from ridgeline_engine.random_bits import request_seed
from ridgeline_engine.request import Finish, FinishReason, OutputRow, Request, RequestKey
from ridgeline_engine.scheduler import Scheduler
from ridgeline_engine.seam import Executor, LaunchId, RowPlan, RowResult
from ridgeline_engine.sequence import Family, Progress, Sequence, SequenceState
from ridgeline_engine.settings import EngineSettings
from ridgeline_engine.slots import Slots
from ridgeline_engine.snapshots import EngineMetrics, LoadSnapshot, load_snapshot

MAX_CHOICES = 128
"""As many as the public API knows; they need not run at once."""
_RETRY_AFTER_MS = 1_000


class Engine:
    """Not thread-safe: all calls come from one thread. After DeviceFault nothing of it may be used."""

    def __init__(self, executor: Executor, clock: Clock, settings: EngineSettings) -> None:
        self._executor, self._clock, self._settings = executor, clock, settings
        self._capabilities = _offered(executor.capabilities, settings)
        _check_model(executor, settings)
        kv = KVManager(
            executor.kv_groups,
            executor.kv_blocks,
            prefix_cache=settings.prefix_cache,
            event_buffer=settings.kv_event_buffer,
        )
        # The last token of a text is sampled, never stored: hence the 1.
        sequence_tokens = min(self._capabilities.max_context_tokens, kv.capacity_tokens + 1)
        self._limits = Limits(self._capabilities, sequence_tokens, MAX_CHOICES)
        self._scheduler = Scheduler(
            kv, Slots(self._capabilities.max_batch), settings, longest_tokens=sequence_tokens
        )
        self._ledger = StepLedger(settings.coefficients)
        self._families: dict[RequestKey, Family] = {}
        self._open: deque[OpenLaunch] = deque()
        self._rows: list[OutputRow] = []
        self._arrivals = 0
        self._last_launch = LaunchId(0)
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
        return bool(self._families or self._rows or self._open)

    def submit(self, request: Request) -> None:
        """Queues a request. Nothing is kept of one that is refused.

        Raises InvalidRequest, Unsupported, or Overloaded while draining and when too many wait.
        """
        if self._draining:
            raise Overloaded("this worker is draining and takes no new work", retry_after_ms=_RETRY_AFTER_MS)
        if request.key in self._families:
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
        family = self._families[request.key] = Family(request)
        self._arrivals += 1
        for choice in range(request.choices):
            sequence = family.choices[choice] = self._sequence(family, choice)
            self._scheduler.add(sequence)
        for sequence in tuple(family.choices.values()):
            self._finish_if_complete(sequence)

    def cancel(self, key: RequestKey) -> bool:
        """Ends what runs under `key`: each choice gets one terminal row from the next step. False if nothing
        does."""
        family = self._families.get(key)
        if family is None:
            return False
        for sequence in tuple(family.choices.values()):
            self._emit_finish(sequence, FinishReason.CANCELLED)
        return True

    def drain(self) -> None:
        """Refuses new work from now on. What was accepted runs to its end; drained once `has_work` is
        false."""
        self._draining = True

    def step(self) -> list[OutputRow]:
        """Runs one step. Returns the rows of all choices that got a token or ended; also rows of earlier
        cancels."""
        self.launch()
        return self.complete()

    def launch(self) -> bool:
        """First half: plans a step and hands it to the executor. False where there is nothing to run."""
        started_ms = self._clock.monotonic_ms()
        for sequence in self._scheduler.expired(started_ms):
            self._emit_finish(sequence, FinishReason.ERROR, _deadline_exceeded(sequence, started_ms))
        draft = self._scheduler.draft(self.step_model, started_ms, fence=self._fence)
        if not draft.rows:
            return False
        self._last_launch = LaunchId(self._last_launch + 1)
        plan = draft.plan(self._last_launch, release=self._scheduler.slots.drain_releases())
        shape = draft.shape
        opened = OpenLaunch(
            plan=plan,
            sequences=tuple(draft.sequences),
            shape=shape,
            cached_tokens=draft.cached_tokens,
            predicted_ms=self.step_model.predict_ms(shape),
            started_ms=started_ms,
            host_ms=self._clock.monotonic_ms() - started_ms,
        )
        self._executor.launch(plan)
        self._executor.sample(plan.launch, {})
        self._open.append(opened)
        return True

    def complete(self) -> list[OutputRow]:
        """Second half: waits for the oldest open launch, if any, and commits it.

        Raises DeviceFault from the executor, InvariantError where it broke the seam.
        """
        if self._open:
            opened = self._open[0]
            result = self._executor.complete(opened.plan.launch)
            completed_ms = self._clock.monotonic_ms()
            # Asked before anything changes: a completion of another launch leaves the open one open.
            if result.launch != opened.plan.launch or len(result.rows) != len(opened.plan.rows):
                raise InvariantError(
                    f"launch {opened.plan.launch} was completed as {result.launch}, or rows are lacking"
                )
            self._open.popleft()
            self._scheduler.slots.retire(result.launch)
            self._scheduler.kv.pool.retire(result.launch)
            for sequence, row, row_result in zip(
                opened.sequences, opened.plan.rows, result.rows, strict=True
            ):
                self._commit(sequence, row, row_result, completed_ms)
            self._ledger.record(opened, result, completed_ms=completed_ms, now_ms=self._clock.monotonic_ms())
        rows, self._rows = self._rows, []
        return rows

    def load(self) -> LoadSnapshot:
        """The load report's facts, now."""
        return load_snapshot(self._scheduler, self.step_model, draining=self._draining)

    def derivations(self) -> tuple[str, ...]:
        """How the next step's thresholds come about, in words: for people who ask why."""
        return self._scheduler.derivations(self.step_model)

    @property
    def preemption_trace(self) -> tuple[PreemptionRecord, ...]:
        """The newest preemptions and pauses, each with the numbers it was decided by."""
        return self._scheduler.log.trace

    def metrics(self) -> EngineMetrics:
        return self._ledger.metrics(
            preemptions=self._scheduler.preemptions,
            waiting=len(self._scheduler.waiting),
            running=len(self._scheduler.running),
        )

    def clear_prefix_cache(self) -> None:
        """Forgets all cached KV: nothing computed before is hit again."""
        self._scheduler.kv.clear()

    def check(self) -> None:
        """Raises InvariantError unless everything the engine holds is consistent. For tests and idle
        moments."""
        self._scheduler.check()
        live = [each for family in self._families.values() for each in family.choices.values()]
        queued = [*self._scheduler.waiting, *self._scheduler.running]
        if sorted(map(id, live)) != sorted(map(id, queued)):
            raise InvariantError("the requests and the queues name different sequences")

    def close(self) -> None:
        """Closes the executor. Open requests get no more rows."""
        self._executor.close()

    @property
    def _fence(self) -> LaunchId | None:
        return self._open[-1].plan.launch if self._open else None

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
        )

    def _finish_if_complete(self, sequence: Sequence) -> None:
        """A retry may bring a choice whose last token had already ended it."""
        reason = finish_reason(sequence) if sequence.output_tokens else None
        if reason is not None:
            self._emit_finish(sequence, reason)

    def _commit(self, sequence: Sequence, row: RowPlan, result: RowResult, now_ms: float) -> None:
        check_row(row, result, vocab_tokens=self._capabilities.vocab_tokens)
        if (sequence.slot, sequence.generation) != (row.slot, row.generation):
            self._ledger.late_results += 1
            return
        sequence.progress.computed_tokens += len(row.tokens)
        if result.fault is not None:
            self._fail(sequence, result.fault)
            return
        advance(sequence, row, result)
        offset = sequence.output_tokens
        accepted = accept(sequence, result, now_ms=now_ms)
        self._scheduler.kv.store(sequence)
        if accepted is None:
            return
        self._ledger.emitted_tokens += len(accepted.tokens)
        finish = None if accepted.reason is None else self._finish(sequence, accepted.reason)
        self._rows.append(
            OutputRow(
                sequence.request.key, sequence.choice, offset, accepted.tokens, accepted.logprobs, finish
            )
        )

    def _fail(self, sequence: Sequence, fault: str) -> None:
        self._ledger.row_faults += 1
        self._scheduler.kv.distrust(sequence)
        error = RidgelineError(f"choice {sequence.choice} failed on the device: {fault}")
        self._emit_finish(sequence, FinishReason.ERROR, error)

    def _emit_finish(
        self, sequence: Sequence, reason: FinishReason, error: RidgelineError | None = None
    ) -> None:
        finish = self._finish(sequence, reason, error)
        self._rows.append(
            OutputRow(sequence.request.key, sequence.choice, sequence.output_tokens, (), finish=finish)
        )

    def _finish(
        self, sequence: Sequence, reason: FinishReason, error: RidgelineError | None = None
    ) -> Finish:
        if sequence.state is SequenceState.FINISHED:
            raise InvariantError(f"choice {sequence.choice} of {sequence.request.key} ended twice")
        self._scheduler.end(sequence, fence=self._fence)
        family = sequence.family
        del family.choices[sequence.choice]
        if not family.choices:
            del self._families[family.request.key]
        self._ledger.count_finish(reason)
        return Finish(reason, sequence.counts(), sequence.clocks(self._clock.monotonic_ms()), error)


def _offered(found: Capabilities, settings: EngineSettings) -> Capabilities:
    batch = found.max_batch if settings.max_batch is None else min(found.max_batch, settings.max_batch)
    return replace(found, max_batch=min(batch, settings.max_step_tokens), max_choices=MAX_CHOICES)


def _check_model(executor: Executor, settings: EngineSettings) -> None:
    for group in executor.kv_groups:
        if group.block_tokens <= 0 or group.block_tokens % GRANULE_TOKENS:
            raise SettingsError(
                f"block_tokens={group.block_tokens} of KV group {group.group}: "
                f"give a multiple of {GRANULE_TOKENS}",
                param="block_tokens",
            )
        if executor.kv_blocks.get(group.group, 0) < 1:
            raise SettingsError(
                f"KV group {group.group} has no blocks: give the worker more memory", param="kv_blocks"
            )
    vocab_tokens = executor.capabilities.vocab_tokens
    for token in settings.eos_token_ids:
        if not 0 <= token < vocab_tokens:
            raise SettingsError(
                f"end token {token} is not in the vocabulary of {vocab_tokens}", param="eos_token_ids"
            )


def _deadline_exceeded(sequence: Sequence, now_ms: float) -> DeadlineExceeded:
    waited_ms = now_ms - sequence.progress.received_ms
    return DeadlineExceeded(
        f"the deadline passed after {waited_ms:.0f} ms in the queue, before the prompt was started: "
        "allow more time",
        retry_after_ms=_RETRY_AFTER_MS,
    )
