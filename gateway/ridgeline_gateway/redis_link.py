"""The one way in which this gateway talks to Redis: bounded waits, and our errors instead of the library's."""

import hashlib
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from ridgeline_contracts.errors import PeerError, SettingsError

_RETRY_MS = 1000
_CONNECT_TIMEOUT_S = 1.0
_SOCKET_TIMEOUT_S = 2.0


class StoreUnreachable(PeerError):
    """Redis did not answer: whether the command took effect is not known. Every command here may be repeated."""

    code = "store_unreachable"


class Script:
    """Lua that runs whole or not at all."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Redis' own name of it, no secret.
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisLink:
    """A pool of connections. Commands that fail for lack of a server raise StoreUnreachable, at most seconds later."""

    def __init__(self, url: str) -> None:
        self.epoch = 0
        """Counts the servers, or lives of one server, that this link has talked to."""
        self._server: str | None = None
        try:
            self._redis: Any = Redis.from_url(
                url,
                socket_connect_timeout=_CONNECT_TIMEOUT_S,
                socket_timeout=_SOCKET_TIMEOUT_S,
                redis_connect_func=self._greet,
                # One place retries, and it knows what may be repeated: the caller.
                retry=None,
            )
        except ValueError as error:
            # The URL may hold a password: it is not repeated.
            raise SettingsError(f"the Redis URL is not valid ({error}): give redis://HOST:PORT/0") from error

    async def command(self, *words: str | bytes | int) -> Any:
        try:
            return await self._redis.execute_command(*words)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise _unreachable(error) from error

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Any:
        """One atomic step. `keys` must lie in one slot."""
        words = (len(keys), *keys, *arguments)
        try:
            try:
                return await self._redis.execute_command("EVALSHA", script.sha, *words)
            except NoScriptError:
                return await self._redis.execute_command("EVAL", script.text, *words)
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise _unreachable(error) from error

    async def _greet(self, connection: Any) -> None:
        """Asks each new connection's server which life of it this is."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        answer = await connection.read_response()
        text = answer.decode() if isinstance(answer, bytes) else str(answer)
        server = next((line for line in text.splitlines() if line.startswith("run_id:")), "")
        if self._server is not None and server != self._server:
            self.epoch += 1
        self._server = server

    async def close(self) -> None:
        try:
            await self._redis.aclose()
        except (RedisError, OSError):
            # The connection is gone already.
            return


def _unreachable(error: Exception) -> StoreUnreachable:
    return StoreUnreachable(
        f"the shared store does not answer ({type(error).__name__}): retry soon", retry_after_ms=_RETRY_MS
    )
