"""What a completed row does to its sequence: tokens kept, tokens counted, lengths rolled back."""

from typing import Any

import pytest
from ridgeline_contracts.blockhash import HashScope
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.commit import accept, check_rows, finish_reason
from ridgeline_engine.request import FinishReason, Request, RequestKey
from ridgeline_engine.seam import Generation, RowPlan, RowResult, SlotId
from ridgeline_engine.sequence import Family, Progress, Sequence

PROMPT = (1, 2, 3)
END = 9


def _sequence(*output: int, min_tokens: int = 0, max_tokens: int = 6, **changes: Any) -> Sequence:
    sampling = SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens)
    request = Request(RequestKey(RequestId("r"), Attempt(0)), PROMPT, sampling)
    return Sequence(
        family=Family(request),
        request=request,
        prompt_tokens=len(PROMPT),
        choice=0,
        rank=(0.0,),
        seed=0,
        max_output_tokens=max_tokens,
        scope=HashScope(b"", "w"),
        end_token_ids=frozenset({END}),
        progress=Progress(0.0),
        tokens=[*PROMPT, *output],
        **changes,
    )


def _row(tokens: tuple[int, ...] = (3,), *, start: int = 2, logits: int = 1, drafts: int = 0) -> RowPlan:
    return RowPlan(SlotId(4), Generation(7), tokens, start, logits, 0, drafts)


def _result(*tokens: int, slot: int = 4, generation: int = 7, **changes: Any) -> RowResult:
    return RowResult(SlotId(slot), Generation(generation), tokens, **changes)


@pytest.mark.parametrize(
    ("row", "result", "message"),
    [
        pytest.param(_row(), _result(5, slot=3), "answered for slot 3 generation 7", id="another-slot"),
        pytest.param(_row(), _result(5, generation=6), "slot 4 generation 6", id="another-owner"),
        pytest.param(_row(), _result(), "wants 1 logits gave 0 tokens", id="no-token"),
        pytest.param(_row(), _result(5, 6), "wants 1 logits gave 2 tokens", id="too-many"),
        pytest.param(_row(logits=0), _result(5), "wants 0 logits gave 1 tokens", id="in-mid-prompt"),
        pytest.param(_row(logits=3), _result(5, 6, 7, 8), "wants 3 logits gave 4", id="beyond-the-drafts"),
        pytest.param(_row(), _result(40), r"sampled \(40,\); the vocabulary has 40", id="no-such-token"),
        pytest.param(_row(), _result(-1), r"sampled \(-1,\)", id="below-zero"),
    ],
)
def test_an_answer_that_breaks_the_seam_is_a_bug(row: RowPlan, result: RowResult, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        check_rows([row], [result], vocab_tokens=40)


@pytest.mark.parametrize(
    ("row", "result"),
    [
        pytest.param(_row(), _result(39), id="one-token"),
        pytest.param(_row(), _result(0), id="token-zero"),
        pytest.param(_row(logits=0), _result(), id="in-mid-prompt"),
        pytest.param(_row(logits=3), _result(5), id="all-drafts-rejected"),
        pytest.param(_row(logits=3), _result(5, 6, 7), id="all-drafts-accepted"),
        pytest.param(_row(), _result(fault="not finite"), id="a-fault-needs-no-token"),
    ],
)
def test_a_sound_answer_is_let_through(row: RowPlan, result: RowResult) -> None:
    check_rows([row], [result], vocab_tokens=40)


def test_a_chunk_moves_what_is_computed_to_its_end() -> None:
    sequence = _sequence(planned_tokens=2)
    assert accept(sequence, _row((1, 2), start=0, logits=0), _result(), now_ms=1.0) == (0, None)
    assert (sequence.computed_tokens, sequence.planned_tokens, sequence.pending_tokens) == (2, 2, 0)
    assert sequence.progress.computed_tokens == 2
    assert (sequence.tokens, sequence.progress.first_token_ms) == ([*PROMPT], None)


def test_a_row_that_samples_is_no_longer_pending() -> None:
    sequence = _sequence(planned_tokens=3, pending_tokens=3)
    assert accept(sequence, _row(), _result(5), now_ms=1.0) == (1, None)
    assert (sequence.computed_tokens, sequence.planned_tokens, sequence.pending_tokens) == (3, 3, 2)


@pytest.mark.parametrize(
    ("tokens", "computed"),
    [
        pytest.param((5,), 3, id="none-accepted"),
        pytest.param((6, 5), 4, id="one-accepted"),
        pytest.param((6, 7, 5), 5, id="all-accepted"),
    ],
)
def test_rejected_drafts_roll_the_lengths_back(tokens: tuple[int, ...], computed: int) -> None:
    sequence = _sequence(planned_tokens=5, pending_tokens=1)
    row = _row((3, 6, 7), start=2, logits=3, drafts=2)
    assert accept(sequence, row, _result(*tokens), now_ms=1.0) == (len(tokens), None)
    assert (sequence.computed_tokens, sequence.planned_tokens) == (computed, computed)
    # What was run is counted, whatever became of it.
    assert sequence.progress.computed_tokens == 3
    assert sequence.tokens == [*PROMPT, *tokens]


def test_an_accepted_token_is_kept_counted_and_timed_once() -> None:
    sequence = _sequence(pending_tokens=1)
    accept(sequence, _row(), _result(5), now_ms=12.0)
    accept(sequence, _row((5,), start=3), _result(6), now_ms=15.0)
    assert sequence.tokens == [*PROMPT, 5, 6]
    assert sequence.progress.first_token_ms == 12.0
    assert (sequence.progress.accepted_tokens, sequence.progress.computed_tokens) == (2, 2)


def test_what_was_sampled_behind_the_end_is_accepted_but_not_emitted() -> None:
    sequence = _sequence(pending_tokens=1)
    row = _row((3, 5, END), start=2, logits=3, drafts=2)
    assert accept(sequence, row, _result(5, END, 6), now_ms=1.0) == (2, FinishReason.STOP)
    assert sequence.tokens == [*PROMPT, 5, END]
    assert sequence.progress.accepted_tokens == 3


def test_a_text_ends_at_its_length_within_a_result() -> None:
    sequence = _sequence(4, max_tokens=3, pending_tokens=1)
    row = _row((4, 5, 6), start=3, logits=3, drafts=2)
    assert accept(sequence, row, _result(5, 6, 7), now_ms=1.0) == (2, FinishReason.LENGTH)
    assert sequence.tokens == [*PROMPT, 4, 5, 6]


def test_an_end_token_before_the_least_length_goes_on() -> None:
    sequence = _sequence(min_tokens=2, pending_tokens=1)
    row = _row((3, END, 5), start=2, logits=3, drafts=2)
    assert accept(sequence, row, _result(END, 5, END), now_ms=1.0) == (3, FinishReason.STOP)


@pytest.mark.parametrize(
    ("output", "min_tokens", "max_tokens", "reason"),
    [
        pytest.param((5,), 0, 6, None, id="goes-on"),
        pytest.param((END,), 0, 6, FinishReason.STOP, id="an-end-token"),
        pytest.param((END,), 1, 6, None, id="an-end-token-that-came-too-soon"),
        pytest.param((5, END), 1, 6, FinishReason.STOP, id="once-the-least-came-before-it"),
        pytest.param((5, 6), 0, 2, FinishReason.LENGTH, id="its-length"),
        pytest.param((5, 6, 7), 0, 2, FinishReason.LENGTH, id="beyond-its-length"),
        pytest.param((5, END), 0, 2, FinishReason.STOP, id="an-end-at-its-length-is-a-stop"),
        pytest.param((5, END), 2, 2, FinishReason.LENGTH, id="but-not-before-the-least"),
    ],
)
def test_why_a_sequence_ends(
    output: tuple[int, ...], min_tokens: int, max_tokens: int, reason: FinishReason | None
) -> None:
    assert finish_reason(_sequence(*output, min_tokens=min_tokens, max_tokens=max_tokens)) is reason
