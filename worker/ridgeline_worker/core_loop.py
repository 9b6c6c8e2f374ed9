"""The core's main loop: take commands, run a step, send what it gave. Asleep when there is nothing to do."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, RidgelineError
from ridgeline_engine.kv_events import KVChange, KVCleared, KVEventLog, KVSnapshot
from ridgeline_engine.request import OutputRow, Request, RequestKey
from ridgeline_engine.snapshots import EngineCounts, LoadSnapshot, StepStats

from ridgeline_worker.inbox import Inbox
from ridgeline_worker.messages import (
    CancelCommand,
    Command,
    Event,
    Refused,
    StepDone,
    StopCommand,
    SubmitCommand,
)
from ridgeline_worker.rows import pack_rows

LOAD_INTERVAL_MS = 20.0
"""The load walks the queues, so it is not taken after each of a small model's steps."""


class EngineLike(Protocol):
    """What the core needs of `ridgeline_engine.engine.Engine`."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def kv_events(self) -> KVEventLog: ...

    @property
    def has_work(self) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def cancel(self, key: RequestKey) -> bool: ...

    def step(self) -> Sequence[OutputRow]: ...

    def load(self) -> LoadSnapshot: ...

    @property
    def last_step(self) -> tuple[int, StepStats | None]: ...

    def counts(self) -> EngineCounts: ...

    def close(self) -> None: ...


class CoreLoop:
    """Runs one engine until it is told to stop. A fault of the engine leaves `run` as the exception it is."""

    def __init__(
        self, engine: EngineLike, inbox: Inbox, *, send: Callable[[Event], None], clock: Clock
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._load_due_ms = 0.0
        self._steps = 0
        self._counts = EngineCounts()
        self._kv_sequence = 0

    def run(self) -> None:
        while True:
            for command in self._inbox.take(wait=not self._engine.has_work):
                if isinstance(command, StopCommand):
                    return
                self._apply(command)
            if self._engine.has_work:
                rows = self._engine.step()
                self._send(self._report(rows))

    def _apply(self, command: Command) -> None:
        match command:
            case SubmitCommand(request):
                self._submit(request)
            case CancelCommand(keys):
                for key in keys:
                    self._engine.cancel(key)
            case _:
                raise InvariantError(f"the core cannot apply {command!r}")

    def _submit(self, request: Request) -> None:
        try:
            self._engine.submit(request)
        except InvariantError:
            raise
        except RidgelineError as error:
            self._send(Refused(request.key, error.code, error.message, error.retry_after_ms))
        except Exception as error:  # noqa: BLE001 - of this request alone; its text may hold a prompt
            told = f"the request could not be queued: {type(error).__name__}"
            self._send(Refused(request.key, RidgelineError.code, told, None))

    def _report(self, rows: Sequence[OutputRow]) -> StepDone:
        steps, last_step = self._engine.last_step
        ran, self._steps = steps > self._steps, steps
        counts, before = self._engine.counts(), self._counts
        self._counts = counts
        return StepDone(
            rows=pack_rows(rows),
            stats=last_step if ran else None,
            counts=None if counts == before else counts,
            load=self._load_if_due(),
            kv_changes=self._new_kv_changes(),
        )

    def _load_if_due(self) -> LoadSnapshot | None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._load_due_ms and self._engine.has_work:
            return None
        self._load_due_ms = now_ms + LOAD_INTERVAL_MS
        return self._engine.load()

    def _new_kv_changes(self) -> tuple[KVChange, ...]:
        log = self._engine.kv_events
        if log.sequence == self._kv_sequence:
            return ()
        found = log.after(self._kv_sequence)
        self._kv_sequence = log.sequence
        if isinstance(found, KVSnapshot):
            return (KVCleared(), *found.stored)
        return tuple(event.change for event in found)
