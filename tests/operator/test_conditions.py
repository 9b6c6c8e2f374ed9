"""Merging status conditions."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.errors import InvariantError
from ridgeline_operator.conditions import (
    MAX_MESSAGE_CHARACTERS,
    Condition,
    ConditionStatus,
    merge_conditions,
)

THEN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NOW = THEN + timedelta(minutes=5)
READY = Condition("Ready", ConditionStatus.TRUE, "AllServing", "3 of 3 workers serve", observed_generation=1)
PROGRESSING = Condition("Progressing", ConditionStatus.FALSE, "Settled", "", observed_generation=1)

conditions = st.builds(
    Condition,
    type=st.sampled_from(["Ready", "Progressing", "Degraded", "Drained"]),
    status=st.sampled_from(ConditionStatus),
    reason=st.sampled_from(["A", "B"]),
    message=st.text(max_size=MAX_MESSAGE_CHARACTERS + 20),
    observed_generation=st.integers(0, 9),
)
condition_lists = st.lists(conditions, max_size=4, unique_by=lambda condition: condition.type)


def test_a_first_condition_gets_the_time_of_now() -> None:
    (merged,) = merge_conditions([], [READY], NOW)
    assert merged == replace(READY, last_transition_time="2026-03-01T12:05:00Z")


@pytest.mark.parametrize(
    ("status", "transition_time"),
    [
        pytest.param(ConditionStatus.TRUE, "2026-03-01T12:00:00Z", id="same-status-keeps-its-time"),
        pytest.param(ConditionStatus.FALSE, "2026-03-01T12:05:00Z", id="other-status-gets-now"),
        pytest.param(ConditionStatus.UNKNOWN, "2026-03-01T12:05:00Z", id="unknown-is-another-status"),
    ],
)
def test_the_transition_time_follows_the_status_alone(status: ConditionStatus, transition_time: str) -> None:
    before = merge_conditions([], [READY], THEN)
    changed = replace(READY, status=status, reason="Other", message="another", observed_generation=2)
    (merged,) = merge_conditions(before, [changed], NOW)
    assert merged == replace(changed, last_transition_time=transition_time)


def test_the_order_is_kept_and_new_types_come_last() -> None:
    before = merge_conditions([], [READY, PROGRESSING], THEN)
    degraded = replace(READY, type="Degraded")
    merged = merge_conditions(before, [degraded, PROGRESSING, READY], NOW)
    assert [condition.type for condition in merged] == ["Ready", "Progressing", "Degraded"]


def test_a_type_that_is_not_named_stays_as_it_is() -> None:
    before = merge_conditions([], [READY, PROGRESSING], THEN)
    assert merge_conditions(before, [PROGRESSING], NOW) == before


def test_a_long_message_is_cut_and_says_so() -> None:
    (merged,) = merge_conditions([], [replace(READY, message="x" * 5000)], NOW)
    assert len(merged.message) == MAX_MESSAGE_CHARACTERS
    assert merged.message.endswith("x...")


def test_another_time_zone_is_written_in_utc() -> None:
    elsewhere = NOW.astimezone(timezone(timedelta(hours=9)))
    assert merge_conditions([], [READY], elsewhere) == merge_conditions([], [READY], NOW)


def test_one_type_twice_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="Ready was given twice"):
        merge_conditions([], [READY, READY], NOW)


def test_an_unmerged_condition_cannot_be_written() -> None:
    with pytest.raises(InvariantError, match="never merged"):
        READY.to_object()


@given(condition_lists, condition_lists)
def test_merging_again_changes_nothing(first: list[Condition], second: list[Condition]) -> None:
    before = merge_conditions([], first, THEN)
    once = merge_conditions(before, second, NOW)
    again = merge_conditions(once, second, NOW + timedelta(hours=1))
    assert again == once
    assert [Condition.from_object(condition.to_object()) for condition in once] == list(once)
