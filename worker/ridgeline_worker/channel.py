"""The private socket between front and core: length-prefixed pickles between a process and its own child."""

import asyncio
import pickle
import socket
import struct
import threading

from ridgeline_contracts.errors import InvariantError

_HEADER = struct.Struct("<Q")
_MAX_MESSAGE_BYTES = 1 << 32
_BUFFER_BYTES = 1 << 20


def _encode(message: object) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


def _body_bytes(header: bytes) -> int:
    (size,) = _HEADER.unpack(header)
    if size > _MAX_MESSAGE_BYTES:
        raise InvariantError(f"a message of {size} bytes between front and core: the stream is out of step")
    return int(size)


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends. The buffers are wide so that the core seldom waits for a front that is busy."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    return ends


class BlockingChannel:
    """The core's end. `send` may be called from several threads, `receive` from one."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._reader = end.makefile("rb")
        self._send_lock = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError when the front is gone."""
        data = _encode(message)
        with self._send_lock:
            self._end.sendall(data)

    def receive(self) -> object | None:
        """The next message, or None when the front is gone."""
        try:
            header = self._reader.read(_HEADER.size)
            if len(header) < _HEADER.size:
                return None
            body = self._reader.read(_body_bytes(header))
        except ConnectionError:
            return None
        message: object = pickle.loads(body)
        return message


class AsyncChannel:
    """The front's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, end: socket.socket) -> "AsyncChannel":
        reader, writer = await asyncio.open_connection(sock=end, limit=_BUFFER_BYTES)
        return cls(reader, writer)

    def send(self, message: object) -> None:
        """Queues a message. To a core that has died it goes nowhere: `receive` tells of the death."""
        if not self._writer.is_closing():
            self._writer.write(_encode(message))

    async def receive(self) -> object | None:
        """The next message, or None when the core is gone."""
        try:
            header = await self._reader.readexactly(_HEADER.size)
            body = await self._reader.readexactly(_body_bytes(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        message: object = pickle.loads(body)
        return message

    def close(self) -> None:
        self._writer.close()
