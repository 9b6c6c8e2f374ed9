"""The one way in which this gateway talks to Redis: bounded waits, and our errors instead of the library's."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from ridgeline_contracts.errors import PeerError, SettingsError

_RETRY_MS = 1000
_CONNECT_TIMEOUT_S = 2.0
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
        self.server: str | None = None
        """The run id of the one that was last connected to; None before the first connection."""
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

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Callable[[str], Sequence[str | bytes | int]]
    ) -> Any:
        """One atomic step. `keys` must lie in one slot. `arguments` is given the run id of the server that will run it:
        it is asked once there is a connection."""
        try:
            connection = await self._redis.connection_pool.get_connection()
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise _unreachable(error) from error
        whole = False
        try:
            words = (len(keys), *keys, *arguments(self.server or ""))
            try:
                answer = await _ask(connection, "EVALSHA", script.sha, *words)
            except NoScriptError:
                answer = await _ask(connection, "EVAL", script.text, *words)
            whole = True
            return answer
        except (RedisConnectionError, RedisTimeoutError, OSError) as error:
            raise _unreachable(error) from error
        except ResponseError:
            whole = True
            raise
        finally:
            if not whole:
                # An answer may still be under way: nobody else may read it.
                await connection.disconnect(nowait=True)
            await self._redis.connection_pool.release(connection)

    async def _greet(self, connection: Any) -> None:
        """Asks each new connection's server which life of it this is."""
        await connection.on_connect()
        await connection.send_command("INFO", "server")
        answer = await connection.read_response()
        text = answer.decode() if isinstance(answer, bytes) else str(answer)
        server = next((line for line in text.splitlines() if line.startswith("run_id:")), "")
        if self.server is not None and server != self.server:
            self.epoch += 1
        self.server = server

    async def close(self) -> None:
        try:
            await self._redis.aclose()
        except (RedisError, OSError):
            # The connection is gone already.
            return


async def _ask(connection: Any, *words: str | bytes | int) -> Any:
    await connection.send_command(*words)
    return await connection.read_response()


def _unreachable(error: Exception) -> StoreUnreachable:
    return StoreUnreachable(
        f"the shared store does not answer ({type(error).__name__}): retry soon", retry_after_ms=_RETRY_MS
    )
