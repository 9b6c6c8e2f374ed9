"""One child's shell: tells its lifecycle what happens to the process and does what the lifecycle answers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ridgeline_contracts.clock import Clock

from ridgeline_cli.up.lifecycle import Action, Event, Lifecycle, LifecycleLimits, State
from ridgeline_cli.up.plan import ChildSpec
from ridgeline_cli.up.processes import Child, Spawner

_LAST_LINES = 20
_NOT_STARTED = 127
_ENDED = (State.STOPPED, State.FAILED)

Probe = Callable[[ChildSpec], Awaitable[None]]
"""Returns when the child is ready to serve; cancelled when it ends before."""


@dataclass(frozen=True, slots=True)
class Death:
    """An end that nobody asked for."""

    exit_code: int
    """Negative: the signal that killed it."""
    last_lines: tuple[str, ...]
    restart_in_ms: float | None
    """None: it is not started again."""


class Watcher(Protocol):
    """Is told what happens, on the event loop, in order."""

    def on_line(self, spec: ChildSpec, line: str) -> None: ...

    def on_starting(self, spec: ChildSpec) -> None: ...

    def on_ready(self, spec: ChildSpec, took_ms: float) -> None: ...

    def on_death(self, spec: ChildSpec, death: Death) -> None: ...

    def on_stopping(self, spec: ChildSpec) -> None: ...

    def on_stopped(self, spec: ChildSpec) -> None: ...

    def on_fault(self, error: BaseException) -> None:
        """The probe itself failed: a bug."""
        ...


class ChildRunner:
    """Starts a child, starts it again when it dies, and stops it when asked. Methods never block."""

    def __init__(
        self,
        spec: ChildSpec,
        *,
        clock: Clock,
        limits: LifecycleLimits,
        spawn: Spawner,
        probe: Probe,
        watcher: Watcher,
    ) -> None:
        self.spec = spec
        self.ended = asyncio.Event()
        """Set in STOPPED and FAILED."""
        self.exit_code: int | None = None
        """Of the last run that has ended."""
        self._clock = clock
        self._lifecycle = Lifecycle(clock=clock, limits=limits)
        self._spawn = spawn
        self._probe = probe
        self._watcher = watcher
        self._child: Child | None = None
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._probing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._started_ms = 0.0

    @property
    def state(self) -> State:
        return self._lifecycle.state

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        self._feed(Event.START)

    def stop(self) -> None:
        """Asks the child to drain and end."""
        self._feed(Event.STOP)

    def stop_now(self) -> None:
        self._feed(Event.STOP_NOW)

    def _feed(self, event: Event) -> None:
        self._after(self._lifecycle.handle(event))

    def _after(self, actions: tuple[Action, ...]) -> None:
        if self.state is not State.STARTING:
            self._stop_probing()
        for action in actions:
            self._do(action)
        self._set_timer()
        if self.state in _ENDED and not self.ended.is_set():
            self.ended.set()
            self._watcher.on_stopped(self.spec)

    def _do(self, action: Action) -> None:
        match action:
            case Action.SPAWN:
                self._start_process()
            case Action.ANNOUNCE:
                self._watcher.on_ready(self.spec, self._clock.monotonic_ms() - self._started_ms)
            case Action.REPORT:
                self._report()
            case Action.TERMINATE:
                self._watcher.on_stopping(self.spec)
                if self._child is not None:
                    self._child.terminate()
            case Action.KILL:
                if self._child is not None:
                    self._child.kill()

    def _start_process(self) -> None:
        self._lines.clear()
        self._started_ms = self._clock.monotonic_ms()
        self._watcher.on_starting(self.spec)
        try:
            self._child = self._spawn(self.spec, on_line=self._on_line, on_exit=self._on_exit)
        except OSError as error:
            # Counted like a death, so that a machine that is short of processes for a moment gets another
            # try.
            self._on_line(f"cannot be started: {error}")
            asyncio.get_running_loop().call_soon(self._on_exit, _NOT_STARTED)
            return
        self._probing = asyncio.create_task(self._wait_for_answer(), name=f"{self.spec.name}-probe")
        self._probing.add_done_callback(self._look_at_probe)

    async def _wait_for_answer(self) -> None:
        await self._probe(self.spec)
        # Done with: feeding the event must not cancel the task that it runs in.
        self._probing = None
        self._feed(Event.ANSWERED)

    def _look_at_probe(self, probing: asyncio.Task[None]) -> None:
        error = None if probing.cancelled() else probing.exception()
        if error is not None:
            self._watcher.on_fault(error)

    def _stop_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
            self._probing = None

    def _report(self) -> None:
        assert self.exit_code is not None
        due_ms = self._lifecycle.due_ms
        restart_in_ms = None if due_ms is None else due_ms - self._clock.monotonic_ms()
        self._watcher.on_death(self.spec, Death(self.exit_code, tuple(self._lines), restart_in_ms))

    def _on_line(self, line: str) -> None:
        self._lines.append(line)
        self._watcher.on_line(self.spec, line)

    def _on_exit(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._child = None
        self._after(self._lifecycle.handle_exit(exit_code))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._lifecycle.due_ms
        if due_ms is not None:
            delay_s = max(0.0, due_ms - self._clock.monotonic_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._feed, Event.TIMER)
