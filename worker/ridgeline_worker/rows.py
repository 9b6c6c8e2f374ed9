"""An engine's output rows on their way from core to front, and from there to the wire.

Rows are the one thing that travels with every step. As tuples of plain values they pickle fifteen times
faster than as dataclasses, and that time is the core's, between two steps.
"""

from collections.abc import Iterable
from typing import TypeAlias

from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_engine.request import Counts, EngineClocks, Finish, FinishReason, OutputRow, RequestKey

PackedLogprob: TypeAlias = tuple[int, float, tuple[tuple[int, float], ...]]
PackedFinish: TypeAlias = tuple[
    str,
    tuple[int, int, int, int, int],
    tuple[float | None, float | None, float, int],
    tuple[str, str, int | None] | None,
]
"""Reason; prompt, cached, computed, accepted, emitted; queue, first token, total ms, preemptions; error."""
PackedRow: TypeAlias = tuple[
    str, int, int, int, tuple[int, ...], tuple[PackedLogprob, ...], PackedFinish | None
]
"""Request id, attempt, choice, first offset, tokens, logprobs, finish."""

_REASONS = {
    FinishReason.STOP.value: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH.value: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED.value: pb.FINISH_REASON_CANCELLED,
    FinishReason.ERROR.value: pb.FINISH_REASON_ERROR,
}


def pack_rows(rows: Iterable[OutputRow]) -> tuple[PackedRow, ...]:
    return tuple(
        [
            (
                *key,
                choice,
                first_offset,
                tokens,
                tuple((each.token, each.logprob, each.top) for each in logprobs) if logprobs else (),
                None if finish is None else _pack_finish(finish),
            )
            for key, choice, first_offset, tokens, logprobs, finish in rows
        ]
    )


def _pack_finish(finish: Finish) -> PackedFinish:
    counts, clocks, error = finish.counts, finish.clocks, finish.error
    return (
        finish.reason.value,
        (
            counts.prompt_tokens,
            counts.cached_tokens,
            counts.computed_tokens,
            counts.accepted_tokens,
            counts.emitted_tokens,
        ),
        (clocks.engine_queue_ms, clocks.engine_ttft_ms, clocks.engine_total_ms, clocks.preemptions),
        None if error is None else (error.code, error.message, error.retry_after_ms),
    )


def error_row(
    key: RequestKey, choice: int, error: RidgelineError, *, first_offset: int, counts: Counts
) -> PackedRow:
    """The terminal row that the front writes where the engine cannot."""
    finish = Finish(FinishReason.ERROR, counts, EngineClocks(None, None, 0.0), error)
    return str(key.request_id), int(key.attempt), choice, first_offset, (), (), _pack_finish(finish)


def frame_to_wire(sequence: int, rows: Iterable[PackedRow]) -> pb.WorkerMessage:
    """One step frame. Rows are written in place: made apart and then copied they take twice the time."""
    message = pb.WorkerMessage()
    frame = message.frame
    frame.sequence = sequence
    for request_id, attempt, choice, first_offset, tokens, logprobs, finish in rows:
        row = frame.rows.add(
            request_id=request_id, attempt=attempt, choice=choice, first_offset=first_offset, tokens=tokens
        )
        for token, logprob, top in logprobs:
            row.logprobs.add(
                token=token,
                logprob=logprob,
                top_tokens=[each for each, _ in top],
                top_logprobs=[value for _, value in top],
            )
        if finish is not None:
            _write_finish(row.finish, finish)
    return message


def _write_finish(message: pb.Finish, finish: PackedFinish) -> None:
    reason, (prompt, cached, computed, accepted, emitted), clocks, error = finish
    queue_ms, ttft_ms, total_ms, preemptions = clocks
    message.reason = _REASONS[reason]
    message.counts.MergeFrom(
        pb.Counts(
            prompt_tokens=prompt,
            cached_tokens=cached,
            computed_tokens=computed,
            accepted_tokens=accepted,
            emitted_tokens=emitted,
        )
    )
    message.clocks.MergeFrom(
        pb.EngineClocks(
            engine_queue_ms=queue_ms or 0.0,
            engine_ttft_ms=ttft_ms or 0.0,
            engine_total_ms=total_ms,
            preemptions=preemptions,
        )
    )
    if error is not None:
        message.error_code, message.error_message, retry_after_ms = error
        if retry_after_ms is not None:
            message.retry_after_ms = retry_after_ms
