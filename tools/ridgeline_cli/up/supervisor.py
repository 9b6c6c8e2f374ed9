"""All children together: start, watch, stop in order. Knows nothing of what they are but their roles."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.exits import USAGE

from ridgeline_cli.up.lifecycle import LifecycleLimits, State
from ridgeline_cli.up.plan import STOP_ORDER, ChildSpec, ProcessPlan, Role
from ridgeline_cli.up.processes import Spawner
from ridgeline_cli.up.ready_file import Pids
from ridgeline_cli.up.runner import ChildRunner, Death, Probe, Watcher

_FAILED = 1

OnAllReady = Callable[[Pids], Awaitable[None]]
"""Awaited when every child is ready, first and after each restart. What it raises ends the run."""


class Supervisor:
    """Runs a plan until it is told to stop or a child cannot be started. Use it once, on one event loop."""

    def __init__(
        self,
        plan: ProcessPlan,
        *,
        clock: Clock,
        spawn: Spawner,
        probe: Probe,
        watcher: Watcher,
        on_all_ready: OnAllReady,
        limits: LifecycleLimits | None = None,
    ) -> None:
        self._on_all_ready = on_all_ready
        self._watcher = watcher
        self._stop_asked = asyncio.Event()
        self._ready_changed = asyncio.Event()
        self._fault: BaseException | None = None
        shared = limits or LifecycleLimits()
        self._runners = [
            ChildRunner(
                spec,
                clock=clock,
                limits=replace(shared, start_timeout_ms=spec.start_timeout_ms),
                spawn=spawn,
                probe=probe,
                watcher=self,
            )
            for spec in plan.children
        ]

    async def run(self) -> int:
        """Starts everything and returns when everything has stopped: 0 when asked to, else an exit code.

        USAGE (2) where a child refused its settings, 1 where it could not be started for another reason.
        However it ends, also by an exception, no child is left running.
        """
        telling = asyncio.create_task(self._tell_all_ready(), name="all-ready")
        try:
            for runner in self._runners:
                runner.start()
            await self._stop_asked.wait()
            await self._stop_in_order()
        finally:
            await self._leave_nothing()
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling
        if self._fault is not None:
            raise self._fault
        return self._exit_code()

    def request_stop(self) -> None:
        """The first time: drain and stop in order. Again: at once."""
        if self._stop_asked.is_set():
            for runner in self._runners:
                runner.stop_now()
        self._stop_asked.set()

    def pids(self) -> Pids | None:
        """Of all children; None while one of them is not ready."""
        if any(runner.state is not State.READY for runner in self._runners):
            return None
        by_role = {role: [runner.pid for runner in self._of(role) if runner.pid is not None] for role in Role}
        return Pids(by_role[Role.GATEWAY][0], by_role[Role.ROUTER][0], tuple(by_role[Role.WORKER]))

    async def _tell_all_ready(self) -> None:
        try:
            while not self._stop_asked.is_set():
                await self._ready_changed.wait()
                self._ready_changed.clear()
                pids = self.pids()
                if pids is not None:
                    await self._on_all_ready(pids)
        except Exception as error:  # noqa: BLE001 - raised again by run(), after the children are stopped
            self.on_fault(error)

    async def _stop_in_order(self) -> None:
        for role in STOP_ORDER:
            runners = self._of(role)
            for runner in runners:
                runner.stop()
            await _all_ended(runners)

    async def _leave_nothing(self) -> None:
        for runner in self._runners:
            runner.stop_now()
        await _all_ended(self._runners)

    def _of(self, role: Role) -> list[ChildRunner]:
        return [runner for runner in self._runners if runner.spec.role is role]

    def _exit_code(self) -> int:
        failed = [runner.exit_code for runner in self._runners if runner.state is State.FAILED]
        if not failed:
            return 0
        return USAGE if USAGE in failed else _FAILED

    # As the runners' watcher: passes on, and looks at the whole.

    def on_line(self, spec: ChildSpec, line: str) -> None:
        self._watcher.on_line(spec, line)

    def on_starting(self, spec: ChildSpec) -> None:
        self._watcher.on_starting(spec)

    def on_ready(self, spec: ChildSpec, took_ms: float) -> None:
        self._watcher.on_ready(spec, took_ms)
        self._ready_changed.set()

    def on_death(self, spec: ChildSpec, death: Death) -> None:
        self._watcher.on_death(spec, death)
        if death.restart_in_ms is None:
            self._stop_asked.set()

    def on_stopping(self, spec: ChildSpec) -> None:
        self._watcher.on_stopping(spec)

    def on_stopped(self, spec: ChildSpec) -> None:
        self._watcher.on_stopped(spec)

    def on_fault(self, error: BaseException) -> None:
        self._fault = self._fault or error
        self._stop_asked.set()


async def _all_ended(runners: Sequence[ChildRunner]) -> None:
    for runner in runners:
        await runner.ended.wait()
