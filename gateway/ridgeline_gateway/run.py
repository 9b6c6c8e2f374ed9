"""One request of a client: one generation a prompt, one reservation, one bill."""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.ids import ModelName, RequestId

from ridgeline_gateway.background import Background
from ridgeline_gateway.bucket import MICRO
from ridgeline_gateway.generation import Batch, Clocks, Generation, Used
from ridgeline_gateway.quota import UNIT, Grant, Price, QuotaStore, Receipt, Standing
from ridgeline_gateway.tenants import Tenant

_QUEUED_BATCHES = 64


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is said of a request in its reply, its log line and its metrics."""

    request_id: RequestId
    tenant: Tenant
    model: ModelName
    fingerprint: str
    """Changes when the weights do."""
    created_s: int
    arrived_ms: float
    choices: int
    """Over all prompts."""


@dataclass(frozen=True, slots=True)
class Bill:
    """How a request ended: tokens, quota, clocks."""

    used: Used
    receipt: Receipt
    clocks: Clocks
    attempts: int

    def extension(self, request_id: RequestId) -> dict[str, Any]:
        """The `ridgeline` object of a reply. Quota in resource tokens."""
        return {
            "request_id": request_id,
            "cached_tokens": self.used.cached_tokens,
            "attempts": self.attempts,
            "clocks": self.clock_values(),
            "quota": {
                "unit": UNIT,
                "reserved": self.receipt.reserved_micro / MICRO,
                "charged": self.receipt.charged_micro / MICRO,
                "refunded": self.receipt.refunded_micro / MICRO,
                **_standing(self.receipt.standing),
            },
        }

    def clock_values(self) -> dict[str, float]:
        """Milliseconds by name; those that were not taken are left out."""
        return {name: round(value, 3) for name, value in asdict(self.clocks).items() if value is not None}

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        used = self.used
        return {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.output_tokens,
            "total_tokens": used.prompt_tokens + used.output_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        }


class Run:
    """Pull `next_batch` until None, then `finish`; or `abandon` at any time. The first of the two settles the quota."""

    def __init__(
        self,
        facts: RunFacts,
        generations: list[Generation],
        grant: Grant,
        *,
        quota: QuotaStore,
        price: Price,
        clock: Clock,
        background: Background,
    ) -> None:
        self.facts = facts
        self.grant = grant
        self._generations = generations
        self._choices_each = facts.choices // len(generations)
        self._quota = quota
        self._price = price
        self._clock = clock
        self._background = background
        self._merged = _Merged(generations, self._choices_each) if len(generations) > 1 else None
        self._settling: asyncio.Task[Bill] | None = None

    async def next_batch(self) -> Batch | None:
        """The next deltas by choice, over all prompts; None after the last. Raises what the request failed with."""
        if self._merged is not None:
            return await self._merged.next_batch()
        return await self._generations[0].next_batch()

    async def finish(self) -> Bill:
        """Settles after the last batch."""
        return await asyncio.shield(self._settle(failed=False))

    def abandon(self, *, failed: bool) -> asyncio.Task[Bill]:
        """Cancels what still runs and settles, in the background. `failed`: the platform's fault, not the client's."""
        return self._settle(failed=failed)

    def _settle(self, *, failed: bool) -> asyncio.Task[Bill]:
        if self._settling is None:
            self._settling = self._background.start(self._close(failed=failed))
        return self._settling

    async def _close(self, *, failed: bool) -> Bill:
        if self._merged is not None:
            await self._merged.stop()
        used = Used()
        try:
            await asyncio.gather(*(generation.close() for generation in self._generations))
            used = self._used(failed=failed)
        finally:
            # Whatever went wrong above, nothing stays reserved.
            charged = self._price.of(
                prompt_tokens=used.prompt_tokens,
                cached_tokens=used.cached_tokens,
                output_tokens=used.output_tokens,
            )
            # A worker that made more than it was asked for did so at the platform's cost.
            receipt = await self._quota.settle(self.grant, min(charged, self.grant.reserved_micro))
        clocks = self._generations[0].clocks
        clocks.gateway_total_ms = self._clock.monotonic_ms() - self.facts.arrived_ms
        return Bill(
            used, receipt, clocks, attempts=max(generation.attempts for generation in self._generations)
        )

    def _used(self, *, failed: bool) -> Used:
        total = Used()
        for generation in self._generations:
            used = generation.used(failed=failed)
            total.prompt_tokens += used.prompt_tokens
            total.cached_tokens += used.cached_tokens
            total.output_tokens += used.output_tokens
        return total


class _Merged:
    """Several generations as one stream of batches. Bounded: a slow reader slows all of them."""

    def __init__(self, generations: list[Generation], choices_each: int) -> None:
        self._queue: asyncio.Queue[Batch | BaseException | None] = asyncio.Queue(_QUEUED_BATCHES)
        self._tasks = [
            asyncio.create_task(self._pump(generation, index * choices_each))
            for index, generation in enumerate(generations)
        ]
        self._running = len(self._tasks)

    async def next_batch(self) -> Batch | None:
        while self._running:
            found = await self._queue.get()
            if found is None:
                self._running -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                return found
        return None

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pump(self, generation: Generation, first_choice: int) -> None:
        try:
            while (batch := await generation.next_batch()) is not None:
                await self._queue.put([(first_choice + choice, delta) for choice, delta in batch])
        except Exception as error:  # noqa: BLE001  # handed to the reader, which raises it
            await self._queue.put(error)
        else:
            await self._queue.put(None)


def _standing(standing: Standing) -> dict[str, float | None]:
    def tokens(micro: int | None) -> float | None:
        return None if micro is None else micro / MICRO

    return {"limit": tokens(standing.limit_micro), "remaining": tokens(standing.remaining_micro)}


def quota_headers(standing: Standing) -> dict[str, str]:
    """`x-ratelimit-*` in whole resource tokens, rounded down; nothing for an unlimited tenant."""
    if standing.limit_micro is None or standing.remaining_micro is None or standing.reset_ms is None:
        return {}
    return {
        "x-ratelimit-limit-tokens": str(standing.limit_micro // MICRO),
        "x-ratelimit-remaining-tokens": str(standing.remaining_micro // MICRO),
        "x-ratelimit-reset-tokens": f"{standing.reset_ms}ms",
        "x-ratelimit-unit": UNIT,
    }


async def collect(run: Run) -> Batch:
    """All batches of a run, for a reply in one piece."""
    batches: Batch = []
    while (batch := await run.next_batch()) is not None:
        batches += batch
    return batches
