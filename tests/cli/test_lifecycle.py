"""The table of a child's life, on a virtual clock."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_cli.up.lifecycle import (
    Action,
    Event,
    Lifecycle,
    LifecycleLimits,
    State,
    restart_delay_ms,
)
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import InvariantError

LIMITS = LifecycleLimits(
    start_timeout_ms=1_000,
    drain_timeout_ms=300,
    first_delay_ms=100,
    longest_delay_ms=800,
    steady_after_ms=5_000,
    first_start_tries=3,
)


def _state(child: Lifecycle) -> State:
    """Read through a function: a type checker takes a property for unchanged between two looks."""
    return child.state


def _due_ms(child: Lifecycle) -> float | None:
    return child.due_ms


def _born(clock: VirtualClock) -> Lifecycle:
    child = Lifecycle(clock=clock, limits=LIMITS)
    assert child.handle(Event.START) == (Action.SPAWN,)
    return child


def _ready(clock: VirtualClock) -> Lifecycle:
    child = _born(clock)
    assert child.handle(Event.ANSWERED) == (Action.ANNOUNCE,)
    return child


def test_a_ready_child_that_dies_is_reported_and_started_again_after_the_delay() -> None:
    clock = VirtualClock()
    child = _ready(clock)
    assert child.handle_exit(-9) == (Action.REPORT,)
    assert _state(child) is State.BACKOFF
    assert child.due_ms == clock.monotonic_ms() + 100
    clock.advance(100)
    assert child.handle(Event.TIMER) == (Action.SPAWN,)
    assert _state(child) is State.STARTING


@pytest.mark.parametrize(
    ("deaths", "delay_ms"),
    [
        pytest.param(1, 100, id="first"),
        pytest.param(2, 200, id="doubles"),
        pytest.param(4, 800, id="up-to-the-longest"),
        pytest.param(5, 800, id="and-stays-there"),
        pytest.param(10_000, 800, id="without-overflow"),
    ],
)
def test_the_delay_doubles_up_to_its_longest(deaths: int, delay_ms: float) -> None:
    assert restart_delay_ms(deaths, LIMITS) == delay_ms


@pytest.mark.parametrize(
    ("lived_ms", "second_delay_ms"),
    [
        pytest.param(4_999, 200, id="a-short-life-counts-on"),
        pytest.param(5_000, 100, id="a-steady-life-forgets"),
    ],
)
def test_a_steady_life_forgets_earlier_deaths(lived_ms: float, second_delay_ms: float) -> None:
    clock = VirtualClock()
    child = _ready(clock)
    child.handle_exit(1)
    child.handle(Event.TIMER)
    child.handle(Event.ANSWERED)
    clock.advance(lived_ms)
    child.handle_exit(1)
    assert child.due_ms == clock.monotonic_ms() + second_delay_ms


@pytest.mark.parametrize(
    ("exit_codes", "state"),
    [
        pytest.param((2,), State.FAILED, id="refused-settings-at-once"),
        pytest.param((1, 1), State.BACKOFF, id="two-crashes-may-be-chance"),
        pytest.param((1, 1, 1), State.FAILED, id="three-are-not"),
        pytest.param((-9, 2), State.FAILED, id="refused-settings-later"),
    ],
)
def test_a_child_that_never_got_ready_is_given_up(exit_codes: tuple[int, ...], state: State) -> None:
    child = _born(VirtualClock())
    for number, exit_code in enumerate(exit_codes):
        if number:
            child.handle(Event.TIMER)
        assert child.handle_exit(exit_code) == (Action.REPORT,)
    assert _state(child) is state


def test_a_child_that_was_ready_once_is_never_given_up() -> None:
    child = _ready(VirtualClock())
    for _ in range(50):
        child.handle_exit(2)
        assert _state(child) is State.BACKOFF
        child.handle(Event.TIMER)


def test_a_child_that_never_answers_is_killed_once_and_its_death_counted() -> None:
    clock = VirtualClock()
    child = _born(clock)
    assert child.due_ms == 1_000
    clock.advance(1_000)
    assert child.handle(Event.TIMER) == (Action.KILL,)
    assert _due_ms(child) is None
    assert child.handle_exit(-9) == (Action.REPORT,)
    assert _state(child) is State.BACKOFF


def test_draining_ends_by_itself_or_is_ended() -> None:
    clock = VirtualClock()
    gentle, stubborn = _ready(clock), _ready(clock)
    assert gentle.handle(Event.STOP) == (Action.TERMINATE,)
    assert gentle.handle_exit(0) == ()
    assert _state(gentle) is State.STOPPED

    stubborn.handle(Event.STOP)
    clock.advance(200)
    assert stubborn.handle(Event.STOP) == (), "asking again neither signals again nor gives more time"
    assert stubborn.due_ms == 300
    assert stubborn.handle(Event.TIMER) == (Action.KILL,)
    assert stubborn.handle_exit(-9) == ()
    assert _state(stubborn) is State.STOPPED


def test_the_death_of_a_child_that_is_being_stopped_is_no_news() -> None:
    child = _ready(VirtualClock())
    child.handle(Event.STOP_NOW)
    assert child.handle_exit(-9) == ()
    assert child.due_ms is None


def test_an_event_that_cannot_happen_raises_and_changes_nothing() -> None:
    child = _born(VirtualClock())
    due_ms = child.due_ms
    with pytest.raises(InvariantError, match="starting cannot meet start"):
        child.handle(Event.START)
    assert (child.state, child.due_ms, child.deaths) == (State.STARTING, due_ms, 0)


@given(st.lists(st.sampled_from(sorted(Event)), max_size=40))
def test_every_way_through_the_table_can_be_stopped(events: list[Event]) -> None:
    clock = VirtualClock()
    child = Lifecycle(clock=clock, limits=LIMITS)
    runs = 0
    for event in events:
        before = (child.state, child.due_ms, child.deaths)
        try:
            actions = child.handle(event)
        except InvariantError:
            assert (child.state, child.due_ms, child.deaths) == before
            continue
        runs += actions.count(Action.SPAWN) - (event in (Event.EXITED, Event.EXITED_FOR_GOOD))
        assert runs in (0, 1), "one process at a time"
        clock.advance(10)
    child.handle(Event.STOP_NOW)
    for _ in itertools.takewhile(lambda _: child.state not in (State.STOPPED, State.FAILED), range(2)):
        assert _state(child) is State.KILLING
        child.handle(Event.EXITED)
    assert child.state in (State.STOPPED, State.FAILED)
