"""The health-only HTTP port: /healthz, /readyz and /metrics, answered on the event loop that does the work.

So a loop that hangs fails its liveness probe, which a thread of its own would go on answering.
"""

import asyncio
from collections.abc import Callable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from ridgeline_contracts.errors import SettingsError

_REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
_READ_TIMEOUT_S = 5.0
_MOST_HEADER_LINES = 100


class StatusPage:
    """`not_ready_because` gives None when ready, else a word that says why not."""

    def __init__(self, registry: CollectorRegistry, not_ready_because: Callable[[], str | None]) -> None:
        self._registry = registry
        self._not_ready_because = not_ready_because
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens, and returns the port. Raises SettingsError when it is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port)
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}:{port} for metrics ({error.strerror}): give another --metrics-port"
            ) from error
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        """Status, content type and body for one request."""
        if method not in ("GET", "HEAD"):
            return 405, "text/plain", b"GET only\n"
        match path.partition("?")[0]:
            case "/healthz":
                return 200, "text/plain", b"ok\n"
            case "/readyz":
                reason = self._not_ready_because()
                return (
                    (200, "text/plain", b"ready\n")
                    if reason is None
                    else (503, "text/plain", f"{reason}\n".encode())
                )
            case "/metrics":
                return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
            case _:
                return 404, "text/plain", b"/healthz, /readyz, /metrics\n"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                request_line = await _read_request_line(reader)
                if request_line is not None:
                    await self._respond(writer, *request_line)
        except (TimeoutError, OSError, ValueError):
            # A probe that hangs up, or is no HTTP, gets no answer and hurts nobody.
            pass
        finally:
            writer.close()

    async def _respond(self, writer: asyncio.StreamWriter, method: str, path: str) -> None:
        status, content_type, body = self.answer(method, path)
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + (b"" if method == "HEAD" else body))
        await writer.drain()


async def _read_request_line(reader: asyncio.StreamReader) -> tuple[str, str] | None:
    words = (await reader.readline()).decode("latin-1").split()
    for _ in range(_MOST_HEADER_LINES):
        if (await reader.readline()).strip() == b"":
            break
    return (words[0], words[1]) if len(words) == 3 else None
