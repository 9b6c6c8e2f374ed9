"""Queue policies rank; the lowest rank runs first."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import SettingsError
from ridgeline_engine.policy.ranks import POLICIES, QueueFacts, policy_named
from ridgeline_engine.request import PriorityClass

EARLY = QueueFacts(PriorityClass.INTERACTIVE, 1, 0)
LONG = QueueFacts(PriorityClass.INTERACTIVE, 1, 0, received_ms=100.0, prefill_ms=60.0, overtaking_ratio=2.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(EARLY, QueueFacts(PriorityClass.INTERACTIVE, 2, 0), id="by-arrival"),
        pytest.param(EARLY, QueueFacts(PriorityClass.INTERACTIVE, 1, 1), id="choices-in-order"),
        pytest.param(
            QueueFacts(PriorityClass.INTERACTIVE, 9, 0),
            QueueFacts(PriorityClass.BATCH, 1, 0),
            id="interactive-before-batch",
        ),
        pytest.param(
            LONG, replace(LONG, arrival=2, prefill_ms=1.0, received_ms=101.0), id="length-is-nothing"
        ),
    ],
)
def test_fcfs_ranks(first: QueueFacts, second: QueueFacts) -> None:
    rank = policy_named("fcfs").rank
    assert rank(first) < rank(second)


@pytest.mark.parametrize("name", ["shortest", "fair"])
@pytest.mark.parametrize(
    ("arrives_later_ms", "prefill_ms", "overtakes"),
    [
        pytest.param(1.0, 1.0, True, id="a-short-one-soon-after"),
        pytest.param(117.0, 1.0, True, id="just-within-twice-the-difference-of-59-ms"),
        pytest.param(119.0, 1.0, False, id="just-after"),
        pytest.param(121.0, 0.0, False, id="nothing-passes-later-than-twice-its-prefill"),
        pytest.param(1.0, 60.0, False, id="an-equal-one"),
        pytest.param(1.0, 59.0, True, id="one-that-is-shorter-by-more-than-it-came-later"),
    ],
)
def test_a_shorter_prompt_passes_a_longer_one_only_for_a_time(
    name: str, arrives_later_ms: float, prefill_ms: float, overtakes: bool
) -> None:
    late = replace(LONG, arrival=2, received_ms=100.0 + arrives_later_ms, prefill_ms=prefill_ms)
    rank = policy_named(name).rank
    assert (rank(late) < rank(LONG)) is overtakes


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 1e5), st.floats(0.0, 10.0))
def test_who_comes_later_than_the_ratio_times_the_prefill_never_overtakes(
    prefill_ms: float, other_ms: float, later_ms: float, ratio: float
) -> None:
    rank = policy_named("fair").rank
    first = QueueFacts(PriorityClass.INTERACTIVE, 1, 0, 0.0, prefill_ms, ratio)
    second = QueueFacts(PriorityClass.INTERACTIVE, 2, 0, later_ms, other_ms, ratio)
    assert rank(first) < rank(second) or later_ms < ratio * prefill_ms


def test_interactive_goes_before_batch_whatever_their_lengths() -> None:
    batch = QueueFacts(PriorityClass.BATCH, 1, 0, 0.0, 1.0, 1.0)
    for policy in POLICIES.values():
        assert policy.rank(LONG) < policy.rank(batch)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_ranks_totally_and_repeatably(name: str) -> None:
    rank = policy_named(name).rank
    facts = [
        QueueFacts(priority, arrival, choice)
        for priority in PriorityClass
        for arrival in range(3)
        for choice in range(2)
    ]
    assert len({rank(each) for each in facts}) == len(facts)
    assert [rank(each) for each in facts] == [rank(each) for each in facts]


def test_an_unknown_policy_stops_the_start_and_lists_what_there_is() -> None:
    with pytest.raises(
        SettingsError, match=r"^policy='best' is unknown: give one of fair, fcfs, shortest$"
    ) as refused:
        policy_named("best")
    assert refused.value.param == "policy"
