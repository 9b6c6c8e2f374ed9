"""Rows on their way to the wire: nothing of them is lost."""

import pickle

from ridgeline_contracts.errors import DeadlineExceeded
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.sampling import TokenLogprob
from ridgeline_contracts.wire import logprob_from_wire
from ridgeline_engine.request import (
    Counts,
    EngineClocks,
    Finish,
    FinishReason,
    OutputRow,
    RequestKey,
)
from ridgeline_worker.rows import frame_to_wire, pack_rows

KEY = RequestKey(RequestId("r"), Attempt(2))


def _sent(row: OutputRow) -> pb.Row:
    (packed,) = pickle.loads(pickle.dumps(pack_rows([row])))
    message = frame_to_wire(7, [packed])
    assert message.frame.sequence == 7
    (sent,) = message.frame.rows
    return sent


def test_tokens_and_logprobs_arrive_as_they_were() -> None:
    logprobs = (TokenLogprob(5, -0.5, ((5, -0.5), (9, -1.5))), TokenLogprob(6, -2.0))
    sent = _sent(OutputRow(KEY, 3, 11, (5, 6), logprobs))
    assert (sent.request_id, sent.attempt, sent.choice, sent.first_offset) == ("r", 2, 3, 11)
    assert list(sent.tokens) == [5, 6]
    assert tuple(logprob_from_wire(each) for each in sent.logprobs) == logprobs
    assert not sent.HasField("finish")


def test_a_finish_keeps_reason_counts_and_clocks() -> None:
    for reason, on_wire in (
        (FinishReason.STOP, pb.FINISH_REASON_STOP),
        (FinishReason.LENGTH, pb.FINISH_REASON_LENGTH),
        (FinishReason.CANCELLED, pb.FINISH_REASON_CANCELLED),
    ):
        finish = Finish(reason, Counts(1, 2, 3, 4, 5), EngineClocks(0.5, 1.5, 2.5, 6))
        sent = _sent(OutputRow(KEY, 0, 0, (), finish=finish)).finish
        assert sent.reason == on_wire
        assert sent.counts == pb.Counts(
            prompt_tokens=1, cached_tokens=2, computed_tokens=3, accepted_tokens=4, emitted_tokens=5
        )
        assert sent.clocks == pb.EngineClocks(
            engine_queue_ms=0.5, engine_ttft_ms=1.5, engine_total_ms=2.5, preemptions=6
        )
        assert sent.error_code == ""


def test_an_error_keeps_its_code_and_when_to_come_again() -> None:
    error = DeadlineExceeded("too late", retry_after_ms=40)
    finish = Finish(FinishReason.ERROR, Counts(1, 0, 0, 0, 0), EngineClocks(None, None, 9.0), error)
    sent = _sent(OutputRow(KEY, 0, 0, (), finish=finish)).finish
    assert sent.reason == pb.FINISH_REASON_ERROR
    assert (sent.error_code, sent.error_message, sent.retry_after_ms) == ("deadline_exceeded", "too late", 40)
