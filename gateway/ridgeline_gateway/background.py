"""Work that outlives the request that started it: releases, settlements after a client is gone."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class Background:
    """Holds its tasks, so that none is lost, and says when one fails."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        """Runs `work` to its end whatever happens to the caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def finish(self, *, limit_ms: float) -> None:
        """Waits for what runs; what still does after `limit_ms` is cancelled."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=limit_ms / 1000)
            for task in late:
                task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background.failed", exc_info=error)
