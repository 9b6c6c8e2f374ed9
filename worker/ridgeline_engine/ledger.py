"""What the engine counts, and the step model it fits on the way."""

from dataclasses import dataclass, field
from math import inf

from ridgeline_contracts.step import StepCoefficients

from ridgeline_engine.pipeline import Completion
from ridgeline_engine.policy.preemption_log import PreemptionLog
from ridgeline_engine.request import FinishReason
from ridgeline_engine.snapshots import EngineCounts, EngineMetrics, StepStats
from ridgeline_engine.step_fit import StepFit


@dataclass(slots=True)
class StepLedger:
    """Counters since the start."""

    guess: StepCoefficients
    late_results: int = 0
    wasted_rows: int = 0
    host_faults: int = 0
    row_faults: int = 0
    emitted_tokens: int = 0
    _steps: int = 0
    _decode_tokens: int = 0
    _prefill_tokens: int = 0
    _cached_tokens: int = 0
    _step_ms: float = 0.0
    _host_ms: float = 0.0
    _predicted_ms: float = 0.0
    _finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, FinishReason), 0))
    _last_step: StepStats | None = None
    _last_end_ms: float = -inf
    _fit: StepFit = field(init=False)

    def __post_init__(self) -> None:
        self._fit = StepFit(self.guess)

    @property
    def last_step(self) -> StepStats | None:
        """The newest; None before the first."""
        return self._last_step

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def host_step_ms(self) -> float:
        """Mean time of a step outside the executor; 0 before the first."""
        return self._host_ms / self._steps if self._steps else 0.0

    @property
    def coefficients(self) -> StepCoefficients:
        return self._fit.coefficients

    @property
    def steps_to_refit(self) -> int:
        """Steps that are still planned with the coefficients as they are."""
        return self._fit.steps_to_refit

    def count_finish(self, reason: FinishReason) -> None:
        self._finished[reason.value] += 1

    def record(self, completion: Completion, *, now_ms: float) -> None:
        """Counts a step whose commit ended at `now_ms`. One that was launched while another ran began, for the
        step model, when that one ended."""
        opened = completion.opened
        began_ms = max(opened.started_ms, self._last_end_ms)
        self._last_end_ms = now_ms
        stats = StepStats(
            shape=opened.shape,
            batch=len(opened.plan.rows),
            cached_tokens=opened.cached_tokens,
            step_ms=now_ms - began_ms,
            device_ms=completion.result.device_ms,
            host_ms=opened.host_ms + now_ms - completion.completed_ms,
            predicted_ms=opened.predicted_ms,
        )
        self._fit.observe(opened.shape, stats.step_ms)
        self._last_step = stats
        self._steps += 1
        self._decode_tokens += opened.shape.decode_rows
        self._prefill_tokens += opened.shape.prefill_tokens
        self._cached_tokens += opened.cached_tokens
        self._step_ms += stats.step_ms
        self._host_ms += stats.host_ms
        self._predicted_ms += stats.predicted_ms

    def counts(self, log: PreemptionLog) -> EngineCounts:
        return EngineCounts(
            tuple((cause.value, kind.value, count) for (cause, kind), count in log.counts.items()),
            wasted_rows=self.wasted_rows,
            late_results=self.late_results,
            row_faults=self.row_faults,
            host_faults=self.host_faults,
        )

    def metrics(self, log: PreemptionLog, *, waiting: int, running: int) -> EngineMetrics:
        return EngineMetrics(
            steps=self._steps,
            decode_tokens=self._decode_tokens,
            prefill_tokens=self._prefill_tokens,
            cached_tokens=self._cached_tokens,
            emitted_tokens=self.emitted_tokens,
            preemptions=log.preempted,
            counts=self.counts(log),
            finished=dict(self._finished),
            step_ms=self._step_ms,
            host_ms=self._host_ms,
            predicted_ms=self._predicted_ms,
            waiting=waiting,
            running=running,
            last_step=self._last_step,
        )
