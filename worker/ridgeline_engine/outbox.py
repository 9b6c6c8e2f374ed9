"""Rows to hand out, and the ends of choices: each choice gets exactly one terminal row."""

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, RidgelineError

from ridgeline_engine.ledger import StepLedger
from ridgeline_engine.pipeline import Pipeline
from ridgeline_engine.request import Finish, FinishReason, OutputRow, RequestKey
from ridgeline_engine.scheduler import Scheduler
from ridgeline_engine.seam import RowResult
from ridgeline_engine.sequence import Family, Sequence, SequenceState


class Outbox:
    """What was accepted or ended since rows were last taken, and the families that have not ended."""

    def __init__(self, scheduler: Scheduler, pipeline: Pipeline, ledger: StepLedger, clock: Clock) -> None:
        self._scheduler, self._pipeline, self._ledger, self._clock = scheduler, pipeline, ledger, clock
        self._rows: list[OutputRow] = []
        self.families: dict[RequestKey, Family] = {}

    @property
    def has_rows(self) -> bool:
        return bool(self._rows)

    def take(self) -> list[OutputRow]:
        rows, self._rows = self._rows, []
        return rows

    def deliver(self, sequence: Sequence, result: RowResult, kept: int, reason: FinishReason | None) -> None:
        """A row for the first `kept` tokens of a result; the terminal one where they end the choice."""
        offset = sequence.delivered_tokens
        sequence.delivered_tokens = offset + kept
        sequence.progress.emitted_tokens += kept
        self._ledger.emitted_tokens += kept
        tokens, logprobs = result.tokens, result.logprobs
        if kept < len(tokens):
            tokens, logprobs = tokens[:kept], logprobs[:kept]
        finish = None if reason is None else self._finish(sequence, reason)
        self._rows.append(OutputRow(sequence.request.key, sequence.choice, offset, tokens, logprobs, finish))

    def end(self, sequence: Sequence, reason: FinishReason, error: RidgelineError | None = None) -> None:
        """A terminal row without tokens."""
        offset = sequence.delivered_tokens
        finish = self._finish(sequence, reason, error)
        self._rows.append(OutputRow(sequence.request.key, sequence.choice, offset, (), finish=finish))

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """Ends one choice for a fault of the host's while its request was worked on: the others go on."""
        self._ledger.host_faults += 1
        self.end(sequence, FinishReason.ERROR, _as_ours(sequence, error))

    def _finish(
        self, sequence: Sequence, reason: FinishReason, error: RidgelineError | None = None
    ) -> Finish:
        if sequence.state is SequenceState.FINISHED:
            raise InvariantError(f"choice {sequence.choice} of {sequence.request.key} ended twice")
        if reason is FinishReason.STOP:
            # Rows that were launched before this end was known.
            self._ledger.wasted_rows += sequence.pending_tokens
        self._scheduler.end(sequence, fence=self._pipeline.fence)
        family = sequence.family
        del family.choices[sequence.choice]
        if not family.choices:
            del self.families[family.request.key]
        self._ledger.count_finish(reason)
        return Finish(reason, sequence.counts(), sequence.clocks(self._clock.monotonic_ms()), error)


def _as_ours(sequence: Sequence, error: Exception) -> RidgelineError:
    """A foreign exception's text may hold parts of a prompt: only its kind goes out."""
    if isinstance(error, RidgelineError):
        return error
    return RidgelineError(f"choice {sequence.choice} failed in the engine: {type(error).__name__}")
