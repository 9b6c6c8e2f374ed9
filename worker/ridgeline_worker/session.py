"""One gateway's stream: numbered step frames through a bounded outbox, so that a slow reader hurts only
itself."""

import asyncio
from collections import deque
from collections.abc import Sequence

from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.proto import worker_pb2 as pb

from ridgeline_worker.rows import PackedRow, frame_to_wire


class Outbox:
    """Messages that the gateway has not read yet.
    Its bound is in rows, the unit that a slow reader piles up."""

    def __init__(self, *, max_rows: int) -> None:
        self._max_rows = max_rows
        self._messages: deque[tuple[pb.WorkerMessage, int]] = deque()
        self._rows = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._messages

    def put(self, message: pb.WorkerMessage, rows: int) -> bool:
        """Queues a message that holds `rows` rows.
        False, and nothing queued, when the bound would be passed."""
        if self._rows + rows > self._max_rows:
            return False
        self._messages.append((message, rows))
        self._rows += rows
        self._changed.set()
        return True

    def close(self, *, discard: bool) -> None:
        """No more messages will come. With `discard` those that wait are dropped."""
        if discard:
            self._messages.clear()
            self._rows = 0
        self._is_closed = True
        self._changed.set()

    async def take(self) -> pb.WorkerMessage | None:
        """The oldest message; None when the outbox is closed and empty."""
        while not self._messages:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        message, rows = self._messages.popleft()
        self._rows -= rows
        return message


class GatewaySession:
    """The state of one stream. `overflowed` is set when the gateway has stopped reading."""

    def __init__(self, session_id: int, gateway: pb.GatewayHello, outbox: Outbox) -> None:
        self.session_id = session_id
        self.gateway = gateway
        self.overflowed = asyncio.Event()
        self.refusal: RidgelineError | None = None
        """Set when this gateway's work is refused as a whole (another contract version)."""
        self.commands_ended = False
        """The gateway has closed its side: the stream ends when its last request has."""
        self.outbox = outbox
        self._sequence = 0

    def greet(self, hello: pb.WorkerHello) -> None:
        """The first message, and again when a new core has started: frames are then numbered from 1 anew."""
        self._sequence = 0
        self.outbox.put(pb.WorkerMessage(hello=hello), 0)

    def offer(self, rows: Sequence[PackedRow]) -> bool:
        """Queues one frame. False when the outbox is full: the caller ends the session."""
        if self.overflowed.is_set():
            return False
        if not self.outbox.put(frame_to_wire(self._sequence + 1, rows), len(rows)):
            self.overflowed.set()
            self.outbox.close(discard=True)
            return False
        self._sequence += 1
        return True
