"""HTTP replies that run a generation: in one piece, or as server-sent events. Both notice a client that goes away."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import Cancelled, RidgelineError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline_gateway.connection import abort_of
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.quota.headers import quota_headers
from ridgeline_gateway.render import Renderer
from ridgeline_gateway.request_log import log_run
from ridgeline_gateway.run import Bill, Run, collect

_log = logging.getLogger(__name__)
_COMMENT = b": keep-alive\n\n"


class RunReply(Response):
    """Base: runs `_work` until it ends or the client is gone, and settles in every case."""

    def __init__(self, run: Run, renderer: Renderer, *, clock: Clock, metrics: GatewayMetrics) -> None:
        super().__init__()
        self._run = run
        self._renderer = renderer
        self._clock = clock
        self._metrics = metrics
        self._abort_connection: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._abort_connection = abort_of(scope)
        settled = False
        try:
            async with self._metrics.running():
                await _unless_disconnected(self._work(send), receive)
            settled = True
        except RidgelineError as error:
            self._abandon(error)
            settled = True
            if isinstance(error, Cancelled):
                return
            raise
        finally:
            if not settled:
                # This task was cancelled, or there is a bug: nothing may stay reserved or running.
                self._abandon(Cancelled("the request was cut short"))

    async def _work(self, send: Send) -> None:
        raise NotImplementedError

    def _abandon(self, error: RidgelineError) -> None:
        settling = self._run.abandon(error.code, failed=not isinstance(error, Cancelled))
        settling.add_done_callback(lambda task: self._report(task, error.code))

    def _report(self, settling: asyncio.Task[Bill], outcome: str) -> None:
        if not settling.cancelled() and settling.exception() is None:
            self._note(settling.result(), outcome)

    def _note(self, bill: Bill, outcome: str) -> None:
        log_run(self._run.facts, bill, outcome)
        self._metrics.run_ended(self._run.facts, bill, outcome)


class WholeReply(RunReply):
    """The reply as one JSON object. Nothing is sent before the end, so the status tells how it went."""

    async def _work(self, send: Send) -> None:
        batch = await collect(self._run)
        bill = await self._run.finish()
        body = self._renderer.body(batch, bill)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "server-timing": server_timing(bill),
            **quota_headers(bill.receipt.standing),
        }
        self._note(bill, "ok")
        await send(_start(headers))
        await send({"type": "http.response.body", "body": body})


class StreamReply(RunReply):
    """Server-sent events. The status waits for the first token or `wait_ms`; after that, silences are filled
    with comments so that no proxy takes the connection for dead. A failure after the status is an error
    event, no [DONE]. A reader that is behind pauses its own reply; one that takes nothing for `stall_ms` is cut.
    """

    def __init__(
        self,
        run: Run,
        renderer: Renderer,
        *,
        clock: Clock,
        metrics: GatewayMetrics,
        wait_ms: float,
        stall_ms: float,
    ) -> None:
        super().__init__(run, renderer, clock=clock, metrics=metrics)
        self._wait_ms = wait_ms
        self._stall_ms = stall_ms
        self._begun = False
        self._sent_at_ms = clock.monotonic_ms()
        self._is_writing = False
        self._commenting: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()

    async def _work(self, send: Send) -> None:
        streaming = asyncio.create_task(self._stream(send))
        watching = asyncio.create_task(self._watch(send))
        try:
            await asyncio.wait((streaming, watching), return_when=asyncio.FIRST_COMPLETED)
            if not streaming.done():
                watching.result()
                self._metrics.slow_reader_cut()
                # What waits for a reader that does not read must not wait any longer.
                self._abort_connection()
                raise Cancelled("the client did not read its reply")
            streaming.result()
        finally:
            tasks = [streaming, watching, *([] if self._commenting is None else [self._commenting])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stream(self, send: Send) -> None:
        try:
            while (batch := await self._run.next_batch()) is not None:
                if events := self._renderer.events(batch):
                    await self._send(send, events)
            bill = await self._run.finish()
        except RidgelineError as error:
            if not self._begun:
                raise
            if error.http_status == 500:
                _log.error("stream.failed request_id=%s", self._run.facts.request_id, exc_info=error)
            self._abandon(error)
            await self._send(send, self._renderer.failure(error), last=True)
            return
        self._note(bill, "ok")
        await self._send(send, self._renderer.last_events(bill), last=True)

    async def _send(self, send: Send, body: bytes, *, last: bool = False) -> None:
        async with self._sending:
            if not self._begun:
                self._begun = True
                await send(_start(self._stream_headers()))
            # Returns at once, unless more waits for the reader than the connection may hold.
            self._is_writing = True
            await send({"type": "http.response.body", "body": body, "more_body": not last})
            self._is_writing = False
            self._sent_at_ms = self._clock.monotonic_ms()

    async def _watch(self, send: Send) -> None:
        """Fills silences with comments; returns when one write has been under way for too long."""
        stalled_at_ms, stalled_since_ms = -1.0, 0.0
        while True:
            now_ms, sent_at_ms = self._clock.monotonic_ms(), self._sent_at_ms
            if self._is_writing:
                if stalled_at_ms == sent_at_ms and now_ms - stalled_since_ms >= self._stall_ms:
                    return
                if stalled_at_ms != sent_at_ms:
                    stalled_at_ms, stalled_since_ms = sent_at_ms, now_ms
                await asyncio.sleep(self._stall_ms / 4000)
                continue
            stalled_at_ms = -1.0
            silent_ms = now_ms - sent_at_ms
            if silent_ms >= self._wait_ms:
                await self._comment(send)
            else:
                await asyncio.sleep(min(self._wait_ms - silent_ms, self._stall_ms / 4) / 1000)

    async def _comment(self, send: Send) -> None:
        # Not awaited to its end: a write that stalls is what the watch is there to see.
        self._commenting = asyncio.ensure_future(self._send(send, _COMMENT))
        await asyncio.wait((self._commenting,), timeout=self._stall_ms / 4000)

    def _stream_headers(self) -> dict[str, str]:
        return {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **quota_headers(self._run.standing),
        }


def server_timing(bill: Bill) -> str:
    """The clocks as a Server-Timing header."""
    return ", ".join(f"{name.removesuffix('_ms')};dur={value}" for name, value in bill.clock_values().items())


async def _unless_disconnected(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Runs `work`; cancels it and raises Cancelled when the client goes away first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client went away")
        working.result()
    finally:
        for task in (working, watching):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue


def _start(headers: dict[str, str]) -> dict[str, Any]:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": 200, "headers": raw}
