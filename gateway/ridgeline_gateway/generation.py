"""One prompt's generation: routed, submitted, read, and tried once more if its worker is lost before it
shows.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import (
    CallerError,
    DeadlineExceeded,
    DeviceFault,
    InvariantError,
    OutOfMemory,
    Overloaded,
    PeerError,
    RidgelineError,
    WorkerLost,
    error_from_code,
)
from ridgeline_contracts.ids import BlockHash, RequestId, WorkerId
from ridgeline_contracts.proto import router_pb2, worker_pb2
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_contracts.wire import logprob_from_wire, sampling_to_wire

from ridgeline_gateway.background import Background
from ridgeline_gateway.choice_stream import ChoiceStream, Phase, TextRules
from ridgeline_gateway.deltas import Delta, Ending
from ridgeline_gateway.directory import WorkerDirectory
from ridgeline_gateway.inbox import Inbox
from ridgeline_gateway.router_client import RouterClient
from ridgeline_gateway.settings import LimitSettings, TimingSettings
from ridgeline_gateway.tenants import Tenant, TenantClass
from ridgeline_gateway.token_table import TokenTable
from ridgeline_gateway.worker_link import WorkerLink
from ridgeline_gateway.worker_links import WorkerLinks

_log = logging.getLogger(__name__)
_LOSSES_MADE_GOOD = 1
_REFUSALS_MADE_GOOD = 1

Batch: TypeAlias = list[tuple[int, Delta]]
"""Deltas with their choice, in order."""

_CLASSES = {
    TenantClass.INTERACTIVE: worker_pb2.PRIORITY_CLASS_INTERACTIVE,
    TenantClass.BATCH: worker_pb2.PRIORITY_CLASS_BATCH,
}


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be generated from one prompt."""

    request_id: RequestId
    tenant: Tenant
    cache_salt: bytes
    variant: worker_pb2.Variant
    table: TokenTable
    prompt: tuple[int, ...]
    block_hashes: tuple[BlockHash, ...]
    choices: int
    sampling: SamplingParams
    rules: TextRules
    deadline_ms: float
    """On the gateway's monotonic clock."""


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
    finishes: dict[int, worker_pb2.Finish] = field(default_factory=dict)


class Generation:
    """Pull `next_batch` until it gives None, then `close`; or `close` at any time to cancel. Not for two
    tasks.

    With `hold` nothing is given out before the end, then all at once: so a lost worker can still be made
    good.
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
        self._ended = False
        self._closed = False
        self.clocks = Clocks()
        self.attempts = 1

    @property
    def delivered(self) -> bool:
        """Whether anything was given out."""
        return self._delivered

    async def next_batch(self) -> Batch | None:
        """The next deltas, never empty; None after the last. Raises what the request failed with."""
        while not self._ended:
            try:
                if self._attempt.inbox is None:
                    await self._start()
                batch = self._take(await self._rows())
            except (PeerError, InvariantError) as error:
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
        """Ends the request at the worker if it still runs, waits a bounded time for its last rows, tells the
        router.

        Call it exactly once, also after a failure; it does not raise for a peer that is gone.
        """
        if self._closed:
            raise InvariantError("a generation was closed twice")
        self._closed = True
        await self._end_attempt(_outcome(self._attempt, ended=self._ended))

    def used(self, *, failed: bool) -> Used:
        """What to charge. Exact after `close`; a request that failed with nothing delivered costs nothing."""
        attempt = self._attempt
        cached = max((finish.counts.cached_tokens for finish in attempt.finishes.values()), default=0)
        if failed and not self._delivered:
            return Used()
        computed = any(finish.counts.computed_tokens for finish in attempt.finishes.values())
        if not (self._read_any or computed):
            return Used()
        prompt_tokens = len(self._job.prompt)
        output = sum(self._output_tokens(choice, failed=failed) for choice in range(self._job.choices))
        return Used(prompt_tokens, min(cached, prompt_tokens), output)

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
        attempt.reservation_id = placement.reservation_id
        attempt.worker = WorkerId(placement.decode.worker_id)
        self.clocks.router_estimated_ttft_ms = placement.estimates.ttft_ms
        fleet = self._fleet
        attempt.link = await fleet.links.connected(
            attempt.worker, wait_ms=self._bounded(fleet.timing.connect_wait_ms)
        )
        attempt.inbox = attempt.link.submit(
            self._submit(placement.reservation_id), max_rows=fleet.limits.max_pending_rows
        )
        self.clocks.gateway_queue_ms = fleet.clock.monotonic_ms() - self._arrived_ms

    async def _place(self) -> router_pb2.Placement:
        """Asks the router; a retry waits for a worker to come back, a first try does not."""
        clock = self._fleet.clock
        while True:
            begun_ms = clock.monotonic_ms()
            try:
                placement = await self._fleet.router.route(self._route_request())
            except PeerError:
                if not self._attempt.number or clock.monotonic_ms() >= self._patience_until_ms:
                    raise
                await self._pause()
            else:
                self.clocks.gateway_route_ms = clock.monotonic_ms() - begun_ms
                return placement

    async def _pause(self) -> None:
        """Until the router tells of a change, or a moment."""
        try:
            async with asyncio.timeout(self._bounded(self._fleet.timing.retry_poll_ms) / 1000):
                await self._fleet.directory.change()
        except TimeoutError:
            return

    async def _rows(self) -> list[worker_pb2.Row]:
        assert self._attempt.inbox is not None
        left_ms = self._remaining_ms()
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await self._attempt.inbox.take()
        except TimeoutError as error:
            raise DeadlineExceeded("the request did not finish within its deadline") from error

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
            raise _worker_error(row.finish)
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
        if self._delivered or attempt.worker is None or not self._is_worth_retrying(error):
            raise error
        _log.warning(
            "request.retry request_id=%s worker=%s code=%s", self._job.request_id, attempt.worker, error.code
        )
        if not attempt.number:
            self._patience_until_ms = clock.monotonic_ms() + self._bounded(self._fleet.timing.retry_wait_ms)
        lost = isinstance(error, (WorkerLost, DeviceFault))
        await self._end_attempt(router_pb2.OUTCOME_WORKER_LOST if lost else router_pb2.OUTCOME_FAILED)
        others = [
            worker for worker in self._fleet.directory.serving(self._job.variant) if worker != attempt.worker
        ]
        if not others:
            await self._pause()
        self._excluded = [attempt.worker] if others else []
        self._kept = []
        self._read_any = False
        self.clocks.gateway_ttft_ms = None
        self._attempt = self._fresh_attempt(attempt.number + 1)
        self.attempts += 1

    def _is_worth_retrying(self, error: RidgelineError) -> bool:
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
                while not inbox.complete:
                    self._note_all(await inbox.take())
                if inbox.unread:
                    self._note_all(await inbox.take())
        except TimeoutError:
            _log.warning("request.no_terminal_row request_id=%s", self._job.request_id)
        except RidgelineError as error:
            _log.info("request.ended_without_counts request_id=%s code=%s", self._job.request_id, error.code)

    def _note_all(self, rows: Sequence[worker_pb2.Row]) -> None:
        for row in rows:
            if row.HasField("finish"):
                self._note(row.choice, row.finish)

    def _remaining_ms(self) -> float:
        return self._job.deadline_ms - self._fleet.clock.monotonic_ms()

    def _bounded(self, wait_ms: float) -> float:
        return max(0.0, min(wait_ms, self._remaining_ms()))

    def _route_request(self) -> router_pb2.RouteRequest:
        job = self._job
        return router_pb2.RouteRequest(
            request_id=job.request_id,
            attempt=self._attempt.number,
            variant=job.variant,
            tenant=job.tenant.tenant_id,
            priority_class=_CLASSES[job.tenant.tenant_class],
            block_hashes=job.block_hashes,
            prompt_tokens=len(job.prompt),
            expected_output_tokens=job.sampling.max_tokens * job.choices,
            remaining_ms=int(max(0.0, self._remaining_ms())),
            pins=router_pb2.Pins(excluded_worker_ids=self._excluded),
        )

    def _submit(self, reservation_id: str) -> worker_pb2.Submit:
        job = self._job
        return worker_pb2.Submit(
            request_id=job.request_id,
            attempt=self._attempt.number,
            n=job.choices,
            prompt=[worker_pb2.PromptSegment(tokens=worker_pb2.Tokens(ids=job.prompt))],
            variant=job.variant,
            cache_salt=job.cache_salt,
            tenant=job.tenant.tenant_id,
            weight=job.tenant.weight,
            priority_class=_CLASSES[job.tenant.tenant_class],
            remaining_ms=int(max(0.0, self._remaining_ms())),
            sampling=sampling_to_wire(job.sampling),
            kind=worker_pb2.KIND_GENERATE,
            reservation_id=reservation_id,
        )


def _worker_error(finish: worker_pb2.Finish) -> RidgelineError:
    wait_ms = finish.retry_after_ms if finish.HasField("retry_after_ms") else None
    error = error_from_code(finish.error_code, finish.error_message, retry_after_ms=wait_ms)
    if isinstance(error, CallerError) and error.http_status not in (400, 429):
        # A worker that knows another variant, say: the client can do nothing about that.
        return Overloaded(error.message, retry_after_ms=wait_ms or 1000)
    return error


def _outcome(attempt: _Attempt, *, ended: bool) -> router_pb2.Outcome.ValueType:
    if ended:
        return router_pb2.OUTCOME_FINISHED
    if attempt.inbox is not None and attempt.inbox.failed:
        return router_pb2.OUTCOME_WORKER_LOST
    failed = any(finish.reason == worker_pb2.FINISH_REASON_ERROR for finish in attempt.finishes.values())
    return router_pb2.OUTCOME_FAILED if failed else router_pb2.OUTCOME_CANCELLED
