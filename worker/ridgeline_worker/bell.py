"""Wakes everyone who waits for the next change of something, any number of them."""

import asyncio


class Bell:
    """`version` counts the rings. Wait for a version later than the one that you have seen, and none is
    missed."""

    def __init__(self) -> None:
        self.version = 0
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self.version += 1
        self._rung.set()
        self._rung = asyncio.Event()

    async def after(self, seen: int, *, timeout_ms: float | None = None) -> None:
        """Returns when `version` is later than `seen`, or after the timeout."""
        timeout_s = None if timeout_ms is None else timeout_ms / 1000
        try:
            async with asyncio.timeout(timeout_s):
                while self.version <= seen:
                    await self._rung.wait()
        except TimeoutError:
            return
