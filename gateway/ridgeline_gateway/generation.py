"""One prompt's generation: routed, submitted, read, and tried once more if its worker is lost before it shows."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    DeadlineExceeded,
    DeviceFault,
    InvariantError,
    OutOfMemory,
    Overloaded,
    PeerError,
    RidgelineError,
    WorkerLost,
)
from ridgeline_contracts.ids import WorkerId
from ridgeline_contracts.proto import router_pb2, worker_pb2
from ridgeline_contracts.wire import logprob_from_wire

from ridgeline_gateway.background import Background
from ridgeline_gateway.choice_stream import ChoiceStream, Phase
from ridgeline_gateway.deadlines import passed_while_waiting, too_late
from ridgeline_gateway.deltas import Delta, Ending
from ridgeline_gateway.directory import WorkerDirectory
from ridgeline_gateway.inbox import Inbox
from ridgeline_gateway.job import Job, route_request, router_outcome, submission, worker_error
from ridgeline_gateway.router_client import RouterClient
from ridgeline_gateway.settings import LimitSettings, TimingSettings
from ridgeline_gateway.worker_link import WorkerLink
from ridgeline_gateway.worker_links import WorkerLinks

_log = logging.getLogger(__name__)
_LOSSES_MADE_GOOD = 1
_REFUSALS_MADE_GOOD = 1

Batch: TypeAlias = list[tuple[int, Delta]]
"""Deltas with their choice, in order."""


@dataclass(slots=True)
class Fleet:
    """What a generation needs of the platform."""

    router: RouterClient
    links: WorkerLinks
    directory: WorkerDirectory
    clock: Clock
    timing: TimingSettings
    limits: LimitSettings
    background: Background
    random_bytes: Callable[[int], bytes]


@dataclass(slots=True)
class Clocks:
    """Milliseconds, each named by the clock it was taken on. None: not reached, or not told."""

    gateway_queue_ms: float | None = None
    """From the request's arrival to its submission to a worker."""
    gateway_route_ms: float | None = None
    """The question to the router and its answer."""
    gateway_ttft_ms: float | None = None
    gateway_total_ms: float | None = None
    router_estimated_ttft_ms: float | None = None
    engine_queue_ms: float | None = None
    engine_ttft_ms: float | None = None
    engine_total_ms: float | None = None


@dataclass(slots=True)
class Used:
    """What the tenant is charged for."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(slots=True)
class _Attempt:
    """One try. Replaced as a whole by the next one."""

    number: int
    streams: list[ChoiceStream]
    reservation_id: str = ""
    worker: WorkerId | None = None
    link: WorkerLink | None = None
    inbox: Inbox | None = None
    deadline: asyncio.TimerHandle | None = None
    finishes: dict[int, worker_pb2.Finish] = field(default_factory=dict)


class Generation:
    """Pull `next_batch` until it gives None, then `close`; or `close` at any time to cancel. For one task.

    With `hold` nothing is given out before the end, then all at once: so a lost worker can still be made good.
    """

    def __init__(self, job: Job, fleet: Fleet, *, arrived_ms: float, hold: bool) -> None:
        self._job = job
        self._fleet = fleet
        self._arrived_ms = arrived_ms
        self._hold = hold
        self._kept: Batch = []
        self._delivered = False
        self._read_any = False
        self._excluded: list[WorkerId] = []
        self._losses = 0
        self._refusals = 0
        self._patience_until_ms = 0.0
        self._attempt = self._fresh_attempt(0)
        self._failure: RidgelineError | None = None
        self._ended = False
        self._closed = False
        self._dropped_tokens = 0
        self.before_delivery: Callable[[], Awaitable[None]] | None = None
        """Awaited after tokens were read and before they are given out; what it raises ends the generation."""
        self.clocks = Clocks()
        self.attempts = 1

    async def next_batch(self) -> Batch | None:
        """The next deltas, never empty; None after the last. Raises what the request failed with."""
        while not self._ended:
            try:
                if self._attempt.inbox is None:
                    await self._start()
                assert self._attempt.inbox is not None
                batch = self._take(await self._attempt.inbox.take())
                if self.before_delivery is not None:
                    await self.before_delivery()
            except RidgelineError as error:
                await self._again(error)
                continue
            if self._hold:
                self._kept += batch
            elif batch:
                self._delivered = True
                return batch
        kept, self._kept = self._kept, []
        self._delivered = self._delivered or bool(kept)
        return kept or None

    async def close(self) -> None:
        """Ends the request at the worker if it still runs, waits a bounded time for its last rows, tells the router.

        Call it exactly once, also after a failure; it does not raise for a peer that is gone.
        """
        if self._closed:
            raise InvariantError("a generation was closed twice")
        self._closed = True
        await self._end_attempt(router_outcome(self._failure, ended=self._ended))

    def used(self, *, failed: bool) -> Used:
        """What to charge. Exact after `close`; a request that failed with nothing delivered costs nothing."""
        if failed and (self._hold or not self._delivered):
            return Used()
        finishes = self._attempt.finishes.values()
        cached = max((finish.counts.cached_tokens for finish in finishes), default=0)
        computed = any(finish.counts.computed_tokens for finish in finishes)
        if not (self._read_any or computed):
            return Used()
        prompt_tokens = len(self._job.prompt)
        output = sum(self._output_tokens(choice, failed=failed) for choice in range(self._job.choices))
        return Used(prompt_tokens, min(cached, prompt_tokens), output)

    @property
    def output_tokens(self) -> int:
        """Of all choices, so far, up to each one's stop."""
        return sum(stream.tokens for stream in self._attempt.streams)

    @property
    def kv_held_ms(self) -> float:
        """How long the engine held this prompt's KV, as far as it told."""
        clocks = self.clocks
        if clocks.engine_total_ms is None:
            return 0.0
        return max(0.0, clocks.engine_total_ms - (clocks.engine_queue_ms or 0.0))

    def platform_tokens(self, used: Used) -> int:
        """Tokens made and not charged: earlier attempts, overshoot, rejected drafts, recomputation. After `close`."""
        counts = [finish.counts for finish in self._attempt.finishes.values()]
        emitted = sum(count.emitted_tokens for count in counts)
        computed = sum(count.computed_tokens for count in counts)
        prefilled = max((count.prompt_tokens - count.cached_tokens for count in counts), default=0)
        overshoot = max(0, emitted - used.output_tokens)
        return self._dropped_tokens + overshoot + max(0, computed - prefilled - emitted)

    def _output_tokens(self, choice: int, *, failed: bool) -> int:
        stream = self._attempt.streams[choice]
        finish = self._attempt.finishes.get(choice)
        if stream.phase is not Phase.OPEN or finish is None or failed:
            return stream.tokens
        return min(finish.counts.emitted_tokens, self._job.sampling.max_tokens)

    def _fresh_attempt(self, number: int) -> _Attempt:
        job = self._job
        return _Attempt(number, [ChoiceStream(job.table, job.prompt, job.rules) for _ in range(job.choices)])

    async def _start(self) -> None:
        placement = await self._place()
        attempt = self._attempt
        self._check_in_time(placement)
        attempt.reservation_id = placement.reservation_id
        attempt.worker = WorkerId(placement.decode.worker_id)
        self.clocks.router_estimated_ttft_ms = placement.estimates.ttft_ms
        fleet = self._fleet
        attempt.link = await fleet.links.connected(
            attempt.worker, wait_ms=self._bounded(fleet.timing.connect_wait_ms)
        )
        submit = submission(
            self._job,
            attempt=attempt.number,
            remaining_ms=self._remaining_ms(),
            reservation_id=attempt.reservation_id,
        )
        attempt.inbox = attempt.link.submit(submit, max_rows=fleet.limits.max_pending_rows)
        # One timer an attempt: a time limit around every wait would cost more than the rest of a token.
        late = DeadlineExceeded("the request did not finish within its deadline")
        loop = asyncio.get_running_loop()
        attempt.deadline = loop.call_later(
            self._bounded(self._remaining_ms()) / 1000, attempt.inbox.fail, late
        )
        self.clocks.gateway_queue_ms = fleet.clock.monotonic_ms() - self._arrived_ms

    def _check_in_time(self, placement: router_pb2.Placement) -> None:
        """Raises Overloaded or DeadlineExceeded, the router's reservation released, for what would come too late.

        A retry is not refused for its target: what was admitted is seen through.
        """
        fleet, late = self._fleet, passed_while_waiting(self._remaining_ms())
        refused: PeerError | None = late
        if late is None and self._job.ttft_target_ms is not None and not self._attempt.number:
            refused = too_late(
                placement.estimates,
                waited_ms=fleet.clock.monotonic_ms() - self._arrived_ms,
                target_ms=self._job.ttft_target_ms,
                random_bytes=fleet.random_bytes,
            )
        if refused is not None:
            fleet.router.release(placement.reservation_id, router_pb2.OUTCOME_CANCELLED)
            raise refused

    async def _place(self) -> router_pb2.Placement:
        """Asks the router; a retry waits for a worker to come back, a first try does not."""
        clock = self._fleet.clock
        while True:
            begun_ms = clock.monotonic_ms()
            try:
                placement = await self._fleet.router.route(self._question())
            except PeerError:
                if not self._attempt.number or clock.monotonic_ms() >= self._patience_until_ms:
                    raise
                await self._pause()
            else:
                self.clocks.gateway_route_ms = clock.monotonic_ms() - begun_ms
                return placement

    def _question(self) -> router_pb2.RouteRequest:
        return route_request(
            self._job,
            attempt=self._attempt.number,
            remaining_ms=self._remaining_ms(),
            excluded=self._excluded,
        )

    async def _pause(self) -> None:
        """Until the router tells of a change, or a moment."""
        try:
            async with asyncio.timeout(self._bounded(self._fleet.timing.retry_poll_ms) / 1000):
                await self._fleet.directory.change()
        except TimeoutError:
            return

    def _take(self, rows: Sequence[worker_pb2.Row]) -> Batch:
        self._read_any = True
        if self.clocks.gateway_ttft_ms is None and any(row.tokens for row in rows):
            self.clocks.gateway_ttft_ms = self._fleet.clock.monotonic_ms() - self._arrived_ms
        batch: Batch = []
        for row in rows:
            stream = self._attempt.streams[row.choice]
            batch += [(row.choice, delta) for delta in self._deltas(stream, row)]
        self._ended = all(stream.phase is not Phase.OPEN for stream in self._attempt.streams)
        return batch

    def _deltas(self, stream: ChoiceStream, row: worker_pb2.Row) -> list[Delta]:
        logprobs = (
            [logprob_from_wire(logprob) for logprob in row.logprobs] if self._job.rules.logprobs else []
        )
        if not row.HasField("finish"):
            return stream.feed(row.tokens, logprobs)
        self._note(row.choice, row.finish)
        reason = row.finish.reason
        if reason == worker_pb2.FINISH_REASON_LENGTH:
            return [*stream.feed(row.tokens, logprobs), *stream.end(Ending.LENGTH)]
        if reason == worker_pb2.FINISH_REASON_STOP:
            # The last token is the end or stop token itself: counted, never shown.
            shown = max(0, len(row.tokens) - 1)
            deltas = stream.feed(row.tokens[:shown], logprobs[:shown])
            return [*deltas, *stream.end(Ending.STOP, hidden_tokens=len(row.tokens) - shown)]
        if stream.phase is Phase.STOPPED:
            return []
        if reason == worker_pb2.FINISH_REASON_ERROR:
            raise worker_error(row.finish)
        raise PeerError("the worker gave the request up", retry_after_ms=1000)

    def _note(self, choice: int, finish: worker_pb2.Finish) -> None:
        self._attempt.finishes[choice] = finish
        engine = finish.clocks
        if choice == 0 or self.clocks.engine_total_ms is None:
            self.clocks.engine_queue_ms = engine.engine_queue_ms
            self.clocks.engine_ttft_ms = engine.engine_ttft_ms
            self.clocks.engine_total_ms = engine.engine_total_ms

    async def _again(self, error: RidgelineError) -> None:
        """Makes ready for another attempt, or raises `error`."""
        attempt, clock = self._attempt, self._fleet.clock
        # Without a worker the router itself refused, and was patient where it should be.
        if self._delivered or attempt.worker is None or not self._spend_retry(error):
            self._failure = error
            raise error
        _log.warning(
            "request.retry request_id=%s worker=%s code=%s", self._job.request_id, attempt.worker, error.code
        )
        if not attempt.number:
            self._patience_until_ms = clock.monotonic_ms() + self._bounded(self._fleet.timing.retry_wait_ms)
        await self._end_attempt(router_outcome(error, ended=False))
        others = [
            worker for worker in self._fleet.directory.serving(self._job.variant) if worker != attempt.worker
        ]
        if not others:
            await self._pause()
        self._excluded = [attempt.worker] if others else []
        self._kept = []
        self._dropped_tokens += self.output_tokens
        self._read_any = False
        self.clocks.gateway_ttft_ms = None
        self._attempt = self._fresh_attempt(attempt.number + 1)
        self.attempts += 1

    def _spend_retry(self, error: RidgelineError) -> bool:
        """One loss and one busy worker are made good; a worker that is starting again is waited for."""
        if (
            not isinstance(error, PeerError)
            or isinstance(error, DeadlineExceeded)
            or self._remaining_ms() <= 0
        ):
            return False
        if isinstance(error, (WorkerLost, DeviceFault)) and self._attempt.inbox is not None:
            self._losses += 1
            return self._losses <= _LOSSES_MADE_GOOD
        if isinstance(error, (Overloaded, OutOfMemory)):
            self._refusals += 1
            return self._refusals <= _REFUSALS_MADE_GOOD
        return not self._attempt.number or self._fleet.clock.monotonic_ms() < self._patience_until_ms

    async def _end_attempt(self, outcome: router_pb2.Outcome.ValueType) -> None:
        attempt, inbox, link = self._attempt, self._attempt.inbox, self._attempt.link
        if attempt.deadline is not None:
            attempt.deadline.cancel()
        if inbox is not None and link is not None:
            if not inbox.complete:
                link.cancel(self._job.request_id, attempt.number)
            await self._last_rows(inbox)
            link.forget(self._job.request_id, attempt.number)
        if attempt.reservation_id:
            self._fleet.router.release(attempt.reservation_id, outcome)

    async def _last_rows(self, inbox: Inbox) -> None:
        """Reads on for the terminal rows, whose counts say what was used; text is of no interest any more."""
        try:
            async with asyncio.timeout(self._fleet.timing.settle_wait_ms / 1000):
                while inbox.unread or not inbox.complete:
                    self._note_all(await inbox.take())
        except TimeoutError:
            _log.warning("request.no_terminal_row request_id=%s", self._job.request_id)
        except RidgelineError as error:
            # The worker is gone, or its rows cannot be right.
            _log.info("request.ended_without_counts request_id=%s code=%s", self._job.request_id, error.code)

    def _note_all(self, rows: Sequence[worker_pb2.Row]) -> None:
        for row in rows:
            if row.HasField("finish"):
                self._note(row.choice, row.finish)

    def _remaining_ms(self) -> float:
        return self._job.deadline_ms - self._fleet.clock.monotonic_ms()

    def _bounded(self, wait_ms: float) -> float:
        return max(0.0, min(wait_ms, self._remaining_ms()))
