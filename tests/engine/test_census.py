"""The running sequences in numbers: who decodes, who still has prompt to compute, and how much of it."""

import pytest
from ridgeline_engine.policy.census import take_census
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.sequence import Sequence
from ridgeline_testing.sequences import sequence

BATCH = PriorityClass.BATCH


@pytest.mark.parametrize(
    ("one", "decodes", "prefills"),
    [
        pytest.param(sequence(), False, True, id="nothing-computed"),
        pytest.param(sequence(planned_tokens=9), False, True, id="the-last-prompt-token-is-a-prefill"),
        pytest.param(sequence(planned_tokens=10), False, False, id="its-first-token-is-on-the-way"),
        pytest.param(sequence(output=1, planned_tokens=10), True, False, id="one-token-behind"),
        pytest.param(sequence(output=3, planned_tokens=4), False, True, id="recomputes-prompt-and-output"),
        pytest.param(sequence(output=3, planned_tokens=11), False, True, id="recomputes-output"),
        pytest.param(
            sequence(planned_tokens=10, pending_tokens=1), True, False, id="decodes-what-is-still-sampled"
        ),
        pytest.param(
            sequence(output=3, most=4, planned_tokens=13, pending_tokens=1),
            False,
            False,
            id="its-last-is-on-the-way",
        ),
        pytest.param(
            sequence(output=2, most=4, planned_tokens=12, pending_tokens=1),
            True,
            False,
            id="its-last-but-one",
        ),
    ],
)
def test_a_sequence_decodes_or_prefills_or_waits_for_its_token(
    one: Sequence, decodes: bool, prefills: bool
) -> None:
    census = take_census([one])
    assert (census.interactive.decoding == [one], census.prefills == [one]) == (decodes, prefills)
    assert one.decoding is decodes
    assert (one.uncomputed_tokens > 0) is (decodes or prefills)


def test_rows_and_contexts_are_summed_by_class_and_in_order() -> None:
    running = [
        sequence("a", prompt=10, output=5, planned_tokens=14),
        sequence("b", prompt=7, planned_tokens=3),
        sequence("c", prompt=20, output=2, planned_tokens=21, pending_tokens=0),
        sequence("d", prompt=8, output=1, planned_tokens=8, priority=BATCH),
        sequence("e", prompt=30, planned_tokens=16, priority=BATCH),
        sequence("f", prompt=4, output=1, planned_tokens=5, pending_tokens=1, priority=BATCH),
    ]
    a, b, c, d, e, f = running
    census = take_census(running)
    assert (census.interactive.rows, census.batch.rows) == (3, 3)
    assert (census.interactive.decoding, census.batch.decoding) == ([a, c], [d, f])
    assert (census.interactive.decode_rows, census.batch.decode_rows) == (2, 2)
    assert (census.interactive.context_tokens, census.batch.context_tokens) == (15 + 7 + 22, 9 + 30 + 6)
    assert (census.interactive.decode_context_tokens, census.batch.decode_context_tokens) == (15 + 22, 9 + 6)
    assert census.prefills == [b, e]
    assert census.interactive_prefill_tokens == 4
    assert (census.interactive.mean_context_tokens, census.batch.mean_context_tokens) == (14, 15)
    assert census.of(PriorityClass.INTERACTIVE) is census.interactive
    assert census.of(BATCH) is census.batch


def test_nobody_has_a_mean_context_of_nothing() -> None:
    assert take_census([]).interactive.mean_context_tokens == 0
