"""Work that outlives the request that started it: releases, settlements after a client is gone."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from ridgeline_contracts.errors import InvariantError, RidgelineError

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
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while self._tasks:
                    # One that ends may start another: a settlement its release.
                    await asyncio.wait(set(self._tasks))
        except TimeoutError:
            for task in self._tasks:
                task.cancel()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        # Our own errors, bugs excepted, are for whoever waits for the task.
        if error is not None and (not isinstance(error, RidgelineError) or isinstance(error, InvariantError)):
            _log.error("background.failed", exc_info=error)
