"""The front's state: sessions, requests, what the core last said. No socket is touched here.

Every method runs on the event loop's thread and returns at once, but for those that wait by name.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import Overloaded, PeerError, RidgelineError, error_from_code
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.wire import CONTRACT_VERSION, capabilities_to_wire
from ridgeline_engine.snapshots import LoadSnapshot

from ridgeline_worker.admission import admit, check_contract, emitted_by_choice, key_of
from ridgeline_worker.bell import Bell
from ridgeline_worker.kv_feed import KvFeed
from ridgeline_worker.load_report import FrontState, load_report
from ridgeline_worker.messages import (
    CancelCommand,
    Command,
    CoreReady,
    Event,
    Refused,
    StepDone,
    SubmitCommand,
)
from ridgeline_worker.metrics import WorkerMetrics
from ridgeline_worker.rows import PackedRow
from ridgeline_worker.served import Served
from ridgeline_worker.session import GatewaySession, Outbox
from ridgeline_worker.settings import WorkerSettings
from ridgeline_worker.table import RequestTable, refusal_rows

_log = logging.getLogger(__name__)
_RESTART_RETRY_MS = 1000
_DRAIN_RETRY_MS = 1000


class Front:
    """Implements `CoreListener` towards the supervisor, and what `service` asks for towards gateways."""

    def __init__(
        self,
        settings: WorkerSettings,
        served: Served,
        *,
        incarnation: Incarnation,
        product_version: str,
        clock: Clock,
        metrics: WorkerMetrics,
    ) -> None:
        self.served = served
        self.kv_feed = KvFeed()
        self.load_changed = Bell()
        self.is_closed = False
        self._settings = settings
        self._incarnation = incarnation
        self._product_version = product_version
        self._clock = clock
        self._metrics = metrics
        self._send: Callable[[Command], None] = _drop
        self._table = RequestTable()
        self._table_changed = Bell()
        self._sessions: dict[int, GatewaySession] = {}
        self._last_session_id = 0
        self._core_incarnation = Incarnation("")
        self._capabilities: Capabilities | None = None
        self._load: LoadSnapshot | None = None
        self._core_became_ready = Bell()
        self._draining = False

    def connect_core(self, send: Callable[[Command], None]) -> None:
        """Where commands go; called once, before the first core starts."""
        self._send = send

    # -- what is so now

    @property
    def is_ready(self) -> bool:
        return self._capabilities is not None

    @property
    def is_draining(self) -> bool:
        return self._draining

    @property
    def has_outstanding_work(self) -> bool:
        return len(self._table) > 0

    def report(self) -> pb.LoadReport:
        state = FrontState(self._incarnation, self._core_incarnation, self.is_ready, self._draining)
        return load_report(state, self._load, served=self.served, serving=self._settings.serving)

    # -- the core's side

    def core_ready(self, incarnation: Incarnation, ready: CoreReady) -> None:
        self._core_incarnation = incarnation
        self._capabilities = ready.capabilities
        self._load = ready.load
        self.kv_feed.restart(incarnation)
        for session in self._sessions.values():
            session.greet(self._hello(ready.capabilities))
        _log.info("core.ready incarnation=%s blocks=%d", incarnation, ready.load.total_blocks)
        self._metrics.core_ready(ready.load)
        self._core_became_ready.ring()
        self.load_changed.ring()

    def core_event(self, event: Event) -> None:
        match event:
            case StepDone():
                self._load = event.load or self._load
                self._deliver(self._table.take(event.rows))
                self.kv_feed.apply(event.kv_changes)
                self._metrics.step_done(event)
                self.load_changed.ring()
            case Refused(key, code, message, retry_after_ms):
                error = error_from_code(code, message, retry_after_ms=retry_after_ms)
                self._metrics.refused(code)
                self._deliver(self._table.fail(key, error))
            case _:
                _log.error("core.unexpected event=%s", type(event).__name__)

    def core_lost(self, error: RidgelineError) -> None:
        self._capabilities = None
        self._load = None
        self._metrics.core_lost(error.code, requests=len(self._table))
        self.fail_all(error)
        self.load_changed.ring()

    def fail_all(self, error: RidgelineError) -> None:
        """Ends every request with this error. The core must be gone: it would go on sending rows."""
        self._deliver(self._table.fail_all(error))

    def _deliver(self, by_session: Mapping[int, list[PackedRow]]) -> None:
        for session_id, rows in by_session.items():
            session = self._sessions.get(session_id)
            if session is not None and not session.offer(rows):
                self._lapse(session)
        self._table_changed.ring()

    def _lapse(self, session: GatewaySession) -> None:
        _log.warning("session.lapsed gateway=%s reason=outbox_full", session.gateway.gateway_id)
        self._metrics.session_lapsed()
        self._cancel_session(session.session_id)

    # -- the gateways' side

    async def wait_until_ready(self) -> None:
        """Raises PeerError when the worker stops before it is."""
        while not self.is_ready:
            if self.is_closed:
                raise PeerError("this worker stops", retry_after_ms=_RESTART_RETRY_MS)
            await self._core_became_ready.after(self._core_became_ready.version)

    def open_session(self, gateway: pb.GatewayHello) -> GatewaySession:
        """A stream whose gateway has said hello. Call `wait_until_ready` first: the answer names the core."""
        assert self._capabilities is not None
        self._last_session_id += 1
        session = GatewaySession(
            self._last_session_id, gateway, Outbox(max_rows=self._settings.limits.outbox_rows)
        )
        try:
            check_contract(gateway.contract_version)
        except RidgelineError as error:
            session.refusal = error
        self._sessions[session.session_id] = session
        session.greet(self._hello(self._capabilities))
        _log.info("session.opened gateway=%s incarnation=%s", gateway.gateway_id, gateway.gateway_incarnation)
        self._metrics.sessions(len(self._sessions))
        return session

    def end_session(self, session: GatewaySession) -> None:
        """The stream is over: what it still had running is cancelled at once.

        A session is never resumed. A gateway cannot know which frames of a broken stream are lost, so that it
        tries again under its next attempt; to wait for it would only compute what nobody reads.
        """
        if self._sessions.pop(session.session_id, None) is None:
            return
        cancelled = self._cancel_session(session.session_id)
        session.outbox.close(discard=True)
        _log.info("session.ended gateway=%s cancelled=%d", session.gateway.gateway_id, cancelled)
        self._metrics.sessions(len(self._sessions))

    def commands_ended(self, session: GatewaySession) -> None:
        """The gateway closed its side in order: its requests may end, then the stream does."""
        session.commands_ended = True
        self._table_changed.ring()

    async def wait_until_answered(self, session: GatewaySession) -> None:
        """Until nothing of this session runs and its outbox is read."""
        while self._table.keys_of(session.session_id):
            await self._table_changed.after(self._table_changed.version)
        session.outbox.close(discard=False)

    def submit(self, session: GatewaySession, submit: pb.Submit) -> None:
        """Hands a request to the core, or answers it with terminal rows that say why not."""
        key = key_of(submit)
        if session.overflowed.is_set():
            return
        if self._table.owner(key) == session.session_id:
            # An error row would be read as the end of the one that runs.
            _log.warning("submit.repeated request_id=%s attempt=%d", *key)
            return
        try:
            request = self._admitted(session, submit)
        except RidgelineError as error:
            self._metrics.refused(error.code)
            offsets = [len(tokens) for tokens in emitted_by_choice(submit)]
            if not session.offer(refusal_rows(key, offsets, error)):
                self._lapse(session)
            return
        self._table.open(request.request, session.session_id)
        self._metrics.submitted(request.request)
        self._send(request)

    def _admitted(self, session: GatewaySession, submit: pb.Submit) -> SubmitCommand:
        if session.refusal is not None:
            raise session.refusal
        if self._draining:
            raise Overloaded("this worker is draining and takes no new work", retry_after_ms=_DRAIN_RETRY_MS)
        if self._capabilities is None:
            raise PeerError("this worker's engine is being started again", retry_after_ms=_RESTART_RETRY_MS)
        if (key := key_of(submit)) in self._table:
            raise PeerError(f"attempt {key.attempt} of this request still ends here: raise the attempt")
        now_ms = self._clock.monotonic_ms()
        return SubmitCommand(
            admit(submit, served=self.served.variant, capabilities=self._capabilities, now_ms=now_ms)
        )

    def cancel(self, session: GatewaySession, cancel: pb.Cancel) -> None:
        """Its terminal rows come with the next step.
        A request that has ended, or another's, is left alone."""
        key = key_of(cancel)
        if self._table.owner(key) == session.session_id:
            self._send(CancelCommand((key,)))

    def _cancel_session(self, session_id: int) -> int:
        keys = self._table.disown(session_id)
        if keys:
            self._send(CancelCommand(keys))
        return len(keys)

    def _hello(self, capabilities: Capabilities) -> pb.WorkerHello:
        return pb.WorkerHello(
            worker_id=self._settings.serving.worker_id,
            worker_incarnation=self._incarnation,
            core_incarnation=self._core_incarnation,
            product_version=self._product_version,
            contract_version=CONTRACT_VERSION,
            capabilities=capabilities_to_wire(capabilities),
            variants=[self.served.variant],
            tokenizer_files=dict(self.served.files.sha256_by_name),
        )

    # -- the end

    async def drain(self, max_wait_ms: float) -> int:
        """Takes no new work from now on. Returns how many requests still run when the time is over."""
        self._draining = True
        self.load_changed.ring()
        try:
            async with asyncio.timeout(max_wait_ms / 1000):
                while self.has_outstanding_work:
                    await self._table_changed.after(self._table_changed.version)
        except TimeoutError:
            _log.warning("drain.unfinished requests=%d", len(self._table))
        return len(self._table)

    def close(self) -> None:
        """Ends every stream in order: sessions after what their outboxes hold."""
        self.is_closed = True
        for session in self._sessions.values():
            session.outbox.close(discard=False)
        self.kv_feed.close()
        self.load_changed.ring()
        self._core_became_ready.ring()


def _drop(command: Command) -> None:
    raise RuntimeError(f"no core is connected: {type(command).__name__}")
