"""One HTTP connection's limits: how many bytes may wait for its reader, and how a dead peer is found out."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SEND_BUFFER_BYTES = 128 * 1024
"""Asked of the kernel, which doubles it for its own bookkeeping."""
WRITE_BUFFER_BYTES = 64 * 1024
"""Waits in this process; above it the reply pauses until the reader has caught up."""
USER_TIMEOUT_MS = 30_000
"""Bytes that the peer has not acknowledged for so long end the connection, also while its window is closed."""
HEAD_TIMEOUT_S = 20.0
"""From a connection's or a request's first moment to the end of its headers."""
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 15, 5, 3
_ABORT = "ridgeline.abort"


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol with a byte budget, and a way for a reply to drop the connection with all that waits in it.

    A connection holds at most 2 x SEND_BUFFER_BYTES in the kernel, and WRITE_BUFFER_BYTES and one event here.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        opened = transport.get_extra_info("socket")
        if opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
            _bound(opened)
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()
        extensions: dict[str, Any] = {_ABORT: self.transport.abort}
        self.scope["extensions"] = extensions

    def _expect_head(self) -> None:
        self._head_is_here()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.abort)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def abort_of(scope: Scope) -> Callable[[], None]:
    """Drops the request's connection at once, unsent bytes included. Does nothing under another server."""
    abort: Callable[[], None] | None = (scope.get("extensions") or {}).get(_ABORT)
    return abort or _nothing


def _bound(opened: Any) -> None:
    for level, option, value in (
        (socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES),
    ):
        opened.setsockopt(level, option, value)


def _nothing() -> None:
    return
