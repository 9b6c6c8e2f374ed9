"""The rows of one attempt of a request, between the worker link that reads them and the request that waits for them."""

import asyncio
from collections.abc import Sequence

from ridgeline_contracts.errors import InvariantError, Overloaded, RidgelineError
from ridgeline_contracts.proto import worker_pb2 as pb


class Inbox:
    """Bounded, for one reader. Checks that no row is lost or repeated: a request fails rather than show wrong text."""

    def __init__(self, *, choices: int, max_rows: int) -> None:
        self._rows: list[pb.Row] = []
        self._next_offset = [0] * choices
        self._ended = [False] * choices
        self._max_rows = max_rows
        self._failure: RidgelineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def complete(self) -> bool:
        """Every choice's terminal row has come."""
        return all(self._ended)

    @property
    def unread(self) -> bool:
        """Rows wait for the reader."""
        return bool(self._rows)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def push(self, rows: Sequence[pb.Row]) -> None:
        """Takes the rows of one frame. A row that cannot be right fails the inbox."""
        if self._failure is not None:
            return
        for row in rows:
            problem = self._problem(row)
            if problem is not None:
                self.fail(InvariantError(problem))
                return
            self._next_offset[row.choice] += len(row.tokens)
            self._ended[row.choice] = row.HasField("finish")
            self._rows.append(row)
        if len(self._rows) > self._max_rows:
            self.fail(Overloaded("the reply was read too slowly and was cut: read it faster"))
            return
        self._wake()

    def fail(self, error: RidgelineError) -> None:
        """The reader gets `error` instead of further rows. Only the first failure counts."""
        if self._failure is None and not self.complete:
            self._failure = error
            self._rows.clear()
        self._wake()

    async def take(self) -> list[pb.Row]:
        """All rows that have come since the last call, at least one. Raises the failure, if the inbox failed."""
        while not self._rows:
            if self._failure is not None:
                raise self._failure
            if self.complete:
                raise InvariantError("a request was read on after its last row")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        taken, self._rows = self._rows, []
        return taken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _problem(self, row: pb.Row) -> str | None:
        if row.choice >= len(self._ended):
            return f"a worker sent choice {row.choice} of a request with {len(self._ended)}"
        if self._ended[row.choice]:
            return f"a worker sent a row of choice {row.choice} after its last one"
        expected = self._next_offset[row.choice]
        if row.first_offset != expected:
            return f"choice {row.choice} goes on at token {row.first_offset}, not {expected}: rows are lost or repeated"
        return None
