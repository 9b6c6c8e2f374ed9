"""The one thread that drives the device, so that `launch` and `sample` return at once."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


class LaunchThread:
    """Runs jobs in the order in which they were submitted. A daemon: a stuck device does not hold the exit
    up."""

    def __init__(self, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """The future holds what `job` returned or raised."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = job()
            except BaseException as error:  # noqa: BLE001 - raised again where the future is read
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(run)
        return future

    def close(self, *, timeout_s: float) -> bool:
        """Ends the thread after the jobs that are queued. Returns whether it ended in time."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
