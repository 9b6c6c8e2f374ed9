"""Keeps one core running: starts it, hands on what it says, watches that it lives, starts it again
after its death."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    CallerError,
    DeviceFault,
    InvariantError,
    OutOfMemory,
    RidgelineError,
    WorkerLost,
    error_from_code,
)
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.model_folder import ModelFolder

from ridgeline_worker.core_link import CoreLink
from ridgeline_worker.messages import Command, CoreFailed, CoreReady, CoreSpec, Event
from ridgeline_worker.restarts import Death, DeathCause, GiveUp, after_death, still_relevant
from ridgeline_worker.settings import WorkerSettings

_log = logging.getLogger(__name__)


class CoreListener(Protocol):
    """Who hears of the core's life. All calls come on the event loop's thread and return at once."""

    def core_ready(self, incarnation: Incarnation, ready: CoreReady) -> None: ...

    def core_event(self, event: Event) -> None: ...

    def core_lost(self, error: RidgelineError) -> None:
        """The core is gone; all that it was given is lost."""
        ...

    @property
    def has_outstanding_work(self) -> bool: ...


class CoreSupervisor:
    def __init__(
        self,
        settings: WorkerSettings,
        listener: CoreListener,
        *,
        folder: ModelFolder | None,
        environment: Mapping[str, str],
        clock: Clock,
        new_incarnation: Callable[[], Incarnation],
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._folder = folder
        self._environment = environment
        self._clock = clock
        self._new_incarnation = new_incarnation
        self._link: CoreLink | None = None
        self._is_ready = False
        self._has_served = False
        self._deaths: tuple[Death, ...] = ()
        self._last_words: CoreFailed | None = None

    @property
    def core_pid(self) -> int | None:
        return None if self._link is None else self._link.pid

    def send(self, command: Command) -> None:
        """To the core that is ready. Without one the command is dropped: `core_lost` has answered for
        its requests."""
        if self._link is not None and self._is_ready:
            self._link.send(command)

    async def run(self) -> GiveUp:
        """Runs cores until there is no sense in another one. Cancel it to end; then call `stop`."""
        while True:
            await self._one_life()
            verdict = after_death(self._deaths, has_served=self._has_served)
            if isinstance(verdict, GiveUp):
                return self._explained(verdict)
            _log.warning("core.restarting pause_ms=%.0f cause=%s", verdict.pause_ms, self._deaths[-1].cause)
            await asyncio.sleep(verdict.pause_ms / 1000)

    async def stop(self) -> None:
        """Ends the core, by force when it does not listen."""
        link, self._link = self._link, None
        if link is None:
            return
        if not self._is_ready:
            # It is loading and reads no commands; there is nothing to lose.
            link.end_now()
        await link.stop()

    async def _one_life(self) -> None:
        limits = self._settings.limits
        spec = CoreSpec(
            factory=self._settings.core_factory,
            settings=self._settings.engine,
            incarnation=self._new_incarnation(),
            log_level=self._settings.log_level,
            folder=self._folder,
        )
        self._last_words = None
        link = self._link = await CoreLink.start(spec, environment=self._environment, clock=self._clock)
        watch = asyncio.create_task(self._watch(link, limits.watchdog_ms, limits.start_timeout_ms))
        try:
            while (event := await link.receive()) is not None:
                self._hear(spec.incarnation, event)
        except InvariantError as error:
            _log.exception("core.broke_its_contract pid=%d", link.pid)
            self._last_words = CoreFailed(WorkerLost.code, f"the engine broke its contract: {error.message}")
            link.end_now()
        finally:
            watch.cancel()
        # The stream is at its end: what is left of the process has nothing more to say.
        exit_code = await self._reap(link)
        self._mourn(exit_code, was_hung=link.was_hung)

    async def _reap(self, link: CoreLink) -> int:
        try:
            return await asyncio.wait_for(asyncio.shield(link.wait()), timeout=5.0)
        except TimeoutError:
            link.end_now()
            return await link.wait()

    def _hear(self, incarnation: Incarnation, event: Event) -> None:
        match event:
            case CoreReady():
                self._is_ready = self._has_served = True
                self._listener.core_ready(incarnation, event)
            case CoreFailed():
                self._last_words = event
            case _:
                self._listener.core_event(event)

    async def _watch(self, link: CoreLink, watchdog_ms: float, start_timeout_ms: float) -> None:
        waiting_since_ms = self._clock.monotonic_ms()
        while True:
            limit_ms = watchdog_ms if self._is_ready else start_timeout_ms
            slept_from_ms = self._clock.monotonic_ms()
            await asyncio.sleep(min(limit_ms / 4, 1000) / 1000)
            now_ms = self._clock.monotonic_ms()
            # A front that was itself stopped for long must first read what the core said meanwhile.
            overslept = now_ms - slept_from_ms > limit_ms / 2
            if overslept or (self._is_ready and not self._listener.has_outstanding_work):
                waiting_since_ms = now_ms
            if is_hung(now_ms, last_heard_ms=max(link.last_heard_ms, waiting_since_ms), limit_ms=limit_ms):
                _log.error("core.hung pid=%d silent_ms=%.0f", link.pid, now_ms - link.last_heard_ms)
                link.kill_hung()
                return

    def _mourn(self, exit_code: int, *, was_hung: bool) -> None:
        now_ms = self._clock.monotonic_ms()
        cause = _cause(self._last_words, was_ready=self._is_ready, was_hung=was_hung)
        self._deaths = still_relevant((*self._deaths, Death(cause, now_ms)), now_ms)
        self._is_ready = False
        self._link = None
        error = _error(self._last_words, cause, exit_code)
        _log.error("core.lost cause=%s exit_code=%d message=%r", cause, exit_code, error.message)
        self._listener.core_lost(error)

    def _explained(self, verdict: GiveUp) -> GiveUp:
        words = self._last_words
        if words is None:
            return verdict
        # A refusal may end with the memory ledger: a table for the log, where the reason is one line.
        first, *table = words.message.splitlines()
        for line in table:
            _log.error("core.refused %s", line)
        return GiveUp(verdict.exit_code, f"{verdict.reason}: {first}")


def is_hung(now_ms: float, *, last_heard_ms: float, limit_ms: float) -> bool:
    """Whether a core that has work has been silent for too long."""
    return now_ms - last_heard_ms > limit_ms


def _cause(words: CoreFailed | None, *, was_ready: bool, was_hung: bool) -> DeathCause:
    if was_hung:
        return DeathCause.HUNG if was_ready else DeathCause.START_FAILED
    if words is not None and words.code == DeviceFault.code:
        return DeathCause.DEVICE_FAULT
    if was_ready:
        return DeathCause.CRASHED
    if words is not None and isinstance(
        error_from_code(words.code, words.message), CallerError | OutOfMemory
    ):
        return DeathCause.START_REFUSED
    return DeathCause.START_FAILED


def _error(words: CoreFailed | None, cause: DeathCause, exit_code: int) -> RidgelineError:
    retry_after_ms = 1000
    if words is not None and words.code == DeviceFault.code:
        return DeviceFault(f"the accelerator failed: {words.message}", retry_after_ms=retry_after_ms)
    if words is not None:
        return WorkerLost(words.message, retry_after_ms=retry_after_ms)
    what = (
        "gave no sign of life and was killed" if cause is DeathCause.HUNG else f"ended with code {exit_code}"
    )
    return WorkerLost(
        f"the worker's engine process {what}; it is started again", retry_after_ms=retry_after_ms
    )
