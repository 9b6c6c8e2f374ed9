"""Queue policies rank; the lowest rank runs first."""

import pytest
from ridgeline_contracts.errors import SettingsError
from ridgeline_engine.policy.ranks import POLICIES, QueueFacts, policy_named
from ridgeline_engine.request import PriorityClass

EARLY = QueueFacts(PriorityClass.INTERACTIVE, 1, 0)


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
    ],
)
def test_fcfs_ranks(first: QueueFacts, second: QueueFacts) -> None:
    rank = policy_named("fcfs")
    assert rank(first) < rank(second)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_ranks_totally_and_repeatably(name: str) -> None:
    rank = policy_named(name)
    facts = [
        QueueFacts(priority, arrival, choice)
        for priority in PriorityClass
        for arrival in range(3)
        for choice in range(2)
    ]
    assert len({rank(each) for each in facts}) == len(facts)
    assert [rank(each) for each in facts] == [rank(each) for each in facts]


def test_an_unknown_policy_stops_the_start_and_lists_what_there_is() -> None:
    with pytest.raises(SettingsError, match=r"policy='best' is unknown.*fcfs"):
        policy_named("best")
