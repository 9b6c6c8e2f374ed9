"""The life of one child process: a table of states, and the delays and counts that go with it. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.exits import USAGE


class State(StrEnum):
    IDLE = "idle"
    STARTING = "starting"
    """Runs, and has not answered its probe yet."""
    READY = "ready"
    BACKOFF = "backoff"
    """Dead; a restart is due."""
    DRAINING = "draining"
    """Told to end in its own time."""
    KILLING = "killing"
    STOPPED = "stopped"
    FAILED = "failed"
    """Dead, and a restart would be no use."""


class Event(StrEnum):
    START = "start"
    ANSWERED = "answered"
    """The probe found it ready."""
    EXITED = "exited"
    EXITED_FOR_GOOD = "exited_for_good"
    TIMER = "timer"
    STOP = "stop"
    STOP_NOW = "stop_now"


class Action(StrEnum):
    SPAWN = "spawn"
    ANNOUNCE = "announce"
    """Say that it is ready."""
    REPORT = "report"
    """Say that it died, with its last lines."""
    TERMINATE = "terminate"
    KILL = "kill"


_TABLE: dict[tuple[State, Event], tuple[State, tuple[Action, ...]]] = {
    (State.IDLE, Event.START): (State.STARTING, (Action.SPAWN,)),
    (State.IDLE, Event.STOP): (State.STOPPED, ()),
    (State.IDLE, Event.STOP_NOW): (State.STOPPED, ()),
    (State.STARTING, Event.ANSWERED): (State.READY, (Action.ANNOUNCE,)),
    (State.STARTING, Event.EXITED): (State.BACKOFF, (Action.REPORT,)),
    (State.STARTING, Event.EXITED_FOR_GOOD): (State.FAILED, (Action.REPORT,)),
    # It never answered: its death comes as EXITED and is counted like any other.
    (State.STARTING, Event.TIMER): (State.STARTING, (Action.KILL,)),
    (State.STARTING, Event.STOP): (State.DRAINING, (Action.TERMINATE,)),
    (State.STARTING, Event.STOP_NOW): (State.KILLING, (Action.KILL,)),
    (State.READY, Event.EXITED): (State.BACKOFF, (Action.REPORT,)),
    (State.READY, Event.STOP): (State.DRAINING, (Action.TERMINATE,)),
    (State.READY, Event.STOP_NOW): (State.KILLING, (Action.KILL,)),
    (State.BACKOFF, Event.TIMER): (State.STARTING, (Action.SPAWN,)),
    (State.BACKOFF, Event.STOP): (State.STOPPED, ()),
    (State.BACKOFF, Event.STOP_NOW): (State.STOPPED, ()),
    (State.DRAINING, Event.EXITED): (State.STOPPED, ()),
    (State.DRAINING, Event.TIMER): (State.KILLING, (Action.KILL,)),
    (State.DRAINING, Event.STOP): (State.DRAINING, ()),
    (State.DRAINING, Event.STOP_NOW): (State.KILLING, (Action.KILL,)),
    (State.KILLING, Event.EXITED): (State.STOPPED, ()),
    (State.KILLING, Event.STOP): (State.KILLING, ()),
    (State.KILLING, Event.STOP_NOW): (State.KILLING, (Action.KILL,)),
    (State.STOPPED, Event.STOP): (State.STOPPED, ()),
    (State.STOPPED, Event.STOP_NOW): (State.STOPPED, ()),
    (State.FAILED, Event.STOP): (State.FAILED, ()),
    (State.FAILED, Event.STOP_NOW): (State.FAILED, ()),
}


@dataclass(frozen=True, slots=True)
class LifecycleLimits:
    """How long a child may take, and how restarts are spaced."""

    start_timeout_ms: float = 60_000
    drain_timeout_ms: float = 40_000
    """Longer than the child's own drain limit, so that it normally ends by itself."""
    first_delay_ms: float = 500
    longest_delay_ms: float = 30_000
    steady_after_ms: float = 60_000
    """Ready for so long, a child's earlier deaths are forgotten."""
    first_start_tries: int = 3
    """Deaths before it was ever ready that are taken for chance; the last one of them is final."""


def restart_delay_ms(deaths: int, limits: LifecycleLimits) -> float:
    """Pause before the next start after `deaths` (at least 1) in a row: doubles from first to longest."""
    doublings = min(deaths - 1, 32)
    return float(min(limits.longest_delay_ms, limits.first_delay_ms * 2**doublings))


class Lifecycle:
    """One child's state.

    `handle` returns what to do, in order; an event that cannot happen now changes nothing.
    """

    def __init__(self, *, clock: Clock, limits: LifecycleLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._state = State.IDLE
        self._deaths = 0
        self._was_ready = False
        self._entered_ms = clock.monotonic_ms()
        self._due_ms: float | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def due_ms(self) -> float | None:
        """On the clock's monotonic time: when TIMER is to be handled. None: no timer runs."""
        return self._due_ms

    @property
    def deaths(self) -> int:
        """In a row, since it was last steadily ready."""
        return self._deaths

    def handle(self, event: Event) -> tuple[Action, ...]:
        """Moves on. Raises InvariantError for an event that the state has no row for, and stays as it was."""
        row = _TABLE.get((self._state, event))
        if row is None:
            raise InvariantError(f"a child that is {self._state} cannot meet {event}")
        if event in (Event.EXITED, Event.EXITED_FOR_GOOD):
            self._count_death()
        state, actions = row
        if state is not self._state:
            self._enter(state)
        elif event is Event.TIMER:
            self._due_ms = None
        return actions

    def handle_exit(self, exit_code: int) -> tuple[Action, ...]:
        """An exit, judged first: a child that refuses its settings or never gets ready is given up."""
        hopeless = not self._was_ready and (
            exit_code == USAGE or self._deaths + 1 >= self._limits.first_start_tries
        )
        ends = self._state is State.STARTING and hopeless
        return self.handle(Event.EXITED_FOR_GOOD if ends else Event.EXITED)

    def _count_death(self) -> None:
        ready_ms = self._clock.monotonic_ms() - self._entered_ms
        if self._state is State.READY and ready_ms >= self._limits.steady_after_ms:
            self._deaths = 0
        self._deaths += 1

    def _enter(self, state: State) -> None:
        self._state = state
        self._was_ready = self._was_ready or state is State.READY
        self._entered_ms = self._clock.monotonic_ms()
        limits = self._limits
        waits_ms = {
            State.STARTING: limits.start_timeout_ms,
            State.BACKOFF: restart_delay_ms(self._deaths, limits) if self._deaths else None,
            State.DRAINING: limits.drain_timeout_ms,
        }
        wait_ms = waits_ms.get(state)
        self._due_ms = None if wait_ms is None else self._entered_ms + wait_ms
