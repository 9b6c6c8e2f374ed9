"""One worker's session: commands down, step frames up, rows sorted into the inboxes of their requests."""

import asyncio
import contextlib
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterable, Callable
from typing import Any, TypeAlias

import grpc
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import InvariantError, Overloaded, PeerError, RidgelineError, WorkerLost
from ridgeline_contracts.ids import WorkerId
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.proto.worker_pb2_grpc import WorkerStub
from ridgeline_contracts.wire import CONTRACT_VERSION, capabilities_from_wire

from ridgeline_gateway.inbox import Inbox
from ridgeline_gateway.settings import Identity, TimingSettings

_log = logging.getLogger(__name__)
_Key: TypeAlias = tuple[str, int]
_Call: TypeAlias = Any  # grpc-stubs know no type for a bidirectional aio call
_MOST_UNSENT = 4096
_MESSAGE_BYTES = 64 << 20
_LARGEST_FILE_BYTES = 256 << 20


class WorkerLink:
    """A session that is kept open to one worker until `run` is cancelled. `on_change` hears of gain and loss."""

    def __init__(
        self,
        worker_id: WorkerId,
        address: str,
        *,
        identity: Identity,
        timing: TimingSettings,
        on_change: Callable[[], None],
    ) -> None:
        self.worker_id = worker_id
        self.address = address
        self._identity = identity
        self._timing = timing
        self._on_change = on_change
        self._hello: pb.WorkerHello | None = None
        self._capabilities: Capabilities | None = None
        self._inboxes: dict[_Key, Inbox] = {}
        self._unsent: deque[pb.GatewayMessage] = deque()
        self._unsent_changed = asyncio.Event()
        self._hurry = asyncio.Event()
        self._sequence = 0
        self._channel: grpc.aio.Channel | None = None

    @property
    def hello(self) -> pb.WorkerHello | None:
        """What the worker said of itself; None while there is no session."""
        return self._hello

    @property
    def capabilities(self) -> Capabilities | None:
        return self._capabilities

    @property
    def open_requests(self) -> int:
        return len(self._inboxes)

    def hurry(self) -> None:
        """Tries again now instead of after the back-off: the router says that the worker is there."""
        self._hurry.set()

    def submit(self, submit: pb.Submit, *, max_rows: int) -> Inbox:
        """Queues a request. Raises WorkerLost without a session, Overloaded when the worker does not read."""
        if self._hello is None:
            raise WorkerLost(f"there is no session with worker {self.worker_id}")
        if len(self._unsent) >= _MOST_UNSENT:
            raise Overloaded(f"worker {self.worker_id} does not read its commands", retry_after_ms=1000)
        key = (submit.request_id, submit.attempt)
        if key in self._inboxes:
            raise InvariantError(f"request {key[0]} attempt {key[1]} was submitted twice")
        inbox = self._inboxes[key] = Inbox(choices=max(1, submit.n), max_rows=max_rows)
        self._send(pb.GatewayMessage(submit=submit))
        return inbox

    def cancel(self, request_id: str, attempt: int) -> None:
        """Asks the worker to end a request. Its terminal rows still come. Harmless for one that is over."""
        if (request_id, attempt) in self._inboxes and self._hello is not None:
            self._send(pb.GatewayMessage(cancel=pb.Cancel(request_id=request_id, attempt=attempt)))

    def forget(self, request_id: str, attempt: int) -> None:
        """Drops what may still come for a request."""
        self._inboxes.pop((request_id, attempt), None)

    async def file(self, sha256: str) -> bytes:
        """A tokenizer file by its hash. Raises PeerError when it cannot be had or is not what its hash says."""
        if self._channel is None:
            raise WorkerLost(f"there is no session with worker {self.worker_id}")
        pieces, size = [], 0
        call: AsyncIterable[pb.FilePiece] = WorkerStub(self._channel).TokenizerFile(
            pb.TokenizerFileRequest(sha256=sha256)
        )
        try:
            async for piece in call:
                pieces.append(piece.data)
                size += len(piece.data)
                if size > _LARGEST_FILE_BYTES:
                    raise PeerError(f"tokenizer file {sha256} is larger than {_LARGEST_FILE_BYTES} bytes")
        except grpc.aio.AioRpcError as error:
            raise PeerError(
                f"worker {self.worker_id} did not give tokenizer file {sha256}: {error.code().name}"
            ) from error
        content = b"".join(pieces)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise PeerError(f"worker {self.worker_id} gave a file that is not {sha256}")
        return content

    async def run(self) -> None:
        """Keeps the session, with growing pauses between tries. Never returns; ends by cancellation."""
        pause_ms = self._timing.reconnect_first_ms
        while True:
            self._hurry.clear()
            greeted = await self._connect_once()
            pause_ms = (
                self._timing.reconnect_first_ms
                if greeted
                else min(pause_ms * 2, self._timing.reconnect_last_ms)
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause_ms / 1000)

    async def _connect_once(self) -> bool:
        """One session from start to end. Returns whether the worker said hello."""
        reason, greeted = "the worker ended the session", False
        async with grpc.aio.insecure_channel(self.address, options=_channel_options(self._timing)) as channel:
            try:
                greeted = await self._session(channel)
            except grpc.aio.AioRpcError as error:
                reason, greeted = f"{error.code().name}: {error.details()}", self._hello is not None
            except RidgelineError as error:
                reason, greeted = error.message, self._hello is not None
                _log.error("worker.session_failed worker=%s reason=%s", self.worker_id, error.message)
            finally:
                self._lose(reason)
        return greeted

    async def _session(self, channel: grpc.aio.Channel) -> bool:
        session: _Call = WorkerStub(channel).Session
        call = session()
        await call.write(pb.GatewayMessage(hello=_hello(self._identity)))
        # A worker answers when its engine is ready, however long that takes; keep-alive tells a dead one.
        self._channel = channel
        writer: asyncio.Task[None] | None = None
        try:
            while True:
                message = await call.read()
                if not isinstance(message, pb.WorkerMessage):
                    # gRPC's own mark for an end in order.
                    return self._hello is not None
                self._take(message)
                if writer is None:
                    writer = asyncio.create_task(self._write(call))
        finally:
            if writer is not None:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    async def _write(self, call: _Call) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The reader hears of a broken stream too, and says why.
            while True:
                while self._unsent:
                    await call.write(self._unsent.popleft())
                self._unsent_changed.clear()
                await self._unsent_changed.wait()

    def _send(self, message: pb.GatewayMessage) -> None:
        self._unsent.append(message)
        self._unsent_changed.set()

    def _take(self, message: pb.WorkerMessage) -> None:
        if message.HasField("frame"):
            self._take_frame(message.frame)
        elif message.HasField("hello"):
            self._greet(message.hello)

    def _greet(self, hello: pb.WorkerHello) -> None:
        """First message of a session, and again when the worker has a new engine: frames count from 1 anew."""
        if hello.contract_version != CONTRACT_VERSION:
            raise PeerError(
                f"worker {self.worker_id} speaks contract {hello.contract_version}, this gateway {CONTRACT_VERSION}: "
                "upgrade the older one"
            )
        self._sequence = 0
        self._hello = hello
        self._capabilities = capabilities_from_wire(hello.capabilities)
        _log.info("worker.greeted worker=%s core=%s", self.worker_id, hello.core_incarnation)
        self._on_change()

    def _take_frame(self, frame: pb.StepFrame) -> None:
        if self._hello is None or frame.sequence != self._sequence + 1:
            raise InvariantError(
                f"worker {self.worker_id} sent frame {frame.sequence} after {self._sequence}: frames were lost"
            )
        self._sequence = frame.sequence
        by_request: dict[_Key, list[pb.Row]] = {}
        for row in frame.rows:
            by_request.setdefault((row.request_id, row.attempt), []).append(row)
        for key, rows in by_request.items():
            inbox = self._inboxes.get(key)
            if inbox is not None:
                inbox.push(rows)

    def _lose(self, reason: str) -> None:
        had = self._hello is not None
        self._hello = self._capabilities = self._channel = None
        self._unsent.clear()
        inboxes, self._inboxes = self._inboxes, {}
        for inbox in inboxes.values():
            inbox.fail(
                WorkerLost(f"the worker that ran this request was lost ({reason})", retry_after_ms=1000)
            )
        if had:
            _log.warning("worker.lost worker=%s requests=%d reason=%s", self.worker_id, len(inboxes), reason)
            self._on_change()


def _hello(identity: Identity) -> pb.GatewayHello:
    return pb.GatewayHello(
        gateway_id=identity.gateway_id,
        gateway_incarnation=identity.incarnation,
        product_version=identity.product_version,
        contract_version=CONTRACT_VERSION,
    )


def _channel_options(timing: TimingSettings) -> list[tuple[str, int]]:
    return [
        # A long prefill sends nothing for seconds: pings tell a busy worker from a dead one.
        ("grpc.keepalive_time_ms", timing.keepalive_ms),
        ("grpc.keepalive_timeout_ms", timing.keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_receive_message_length", _MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MESSAGE_BYTES),
        # Reconnection is this class's own, with its own pauses.
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
