"""One request of a client: one generation a prompt, one reservation, one bill."""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.ids import ModelName, RequestId

from ridgeline_gateway.background import Background
from ridgeline_gateway.generation import Batch, Clocks, Generation, Used
from ridgeline_gateway.ledger.record import LedgerEntry
from ridgeline_gateway.merged import Merged
from ridgeline_gateway.quota.desk import Receipt
from ridgeline_gateway.quota.estimate import KvEstimator, OutputEstimator, kv_held_micro
from ridgeline_gateway.quota.hold import Hold
from ridgeline_gateway.quota.limits import MICRO, UNIT
from ridgeline_gateway.quota.steps import Standing
from ridgeline_gateway.tenants import Tenant


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
    prompt_tokens: int
    """As well."""


@dataclass(frozen=True, slots=True)
class Bill:
    """How a request ended: tokens, quota, clocks."""

    used: Used
    receipt: Receipt
    clocks: Clocks
    attempts: int
    price_version: str

    def extension(self, request_id: RequestId) -> dict[str, Any]:
        """The `ridgeline` object of a reply. Quota in resource tokens."""
        return {
            "request_id": request_id,
            "cached_tokens": self.used.cached_tokens,
            "attempts": self.attempts,
            "clocks": self.clock_values(),
            "quota": {
                "unit": UNIT,
                "price_version": self.price_version,
                "reserved": self.receipt.reserved_micro / MICRO,
                "charged": self.receipt.charged_micro / MICRO,
                "refunded": self.receipt.refunded_micro / MICRO,
                "cached_tokens": self.used.cached_tokens,
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


@dataclass(frozen=True, slots=True)
class Learning:
    """What every request teaches about the next."""

    outputs: OutputEstimator
    kv: KvEstimator


class Run:
    """Pull `next_batch` until None, then `finish`; or `abandon` at any time. The first of the two settles the quota."""

    def __init__(
        self,
        facts: RunFacts,
        generations: list[Generation],
        hold: Hold,
        *,
        learning: Learning,
        clock: Clock,
        background: Background,
    ) -> None:
        self.facts = facts
        self._hold = hold
        self._generations = generations
        self._choices_each = facts.choices // len(generations)
        self._learning = learning
        self._clock = clock
        self._background = background
        self._merged = Merged(generations, self._choices_each) if len(generations) > 1 else None
        self._settling: asyncio.Task[Bill] | None = None
        if not hold.is_whole:
            for generation in generations:
                generation.before_delivery = self._cover

    @property
    def standing(self) -> Standing:
        """The tenant's account after the reservation."""
        return self._hold.grant.standing

    async def next_batch(self) -> Batch | None:
        """The next deltas by choice, over all prompts; None after the last. Raises what the request failed with,
        RateLimited when the quota ends in the middle."""
        if self._merged is not None:
            return await self._merged.next_batch()
        return await self._generations[0].next_batch()

    async def _cover(self) -> None:
        await self._hold.cover(sum(generation.output_tokens for generation in self._generations))

    async def finish(self) -> Bill:
        """Settles after the last batch."""
        return await asyncio.shield(self._settle("ok", failed=False))

    def abandon(self, outcome: str, *, failed: bool) -> asyncio.Task[Bill]:
        """Cancels what still runs and settles, in the background. `failed`: the platform's fault, not the client's."""
        return self._settle(outcome, failed=failed)

    def _settle(self, outcome: str, *, failed: bool) -> asyncio.Task[Bill]:
        if self._settling is None:
            self._settling = self._background.start(self._close(outcome, failed=failed))
        return self._settling

    async def _close(self, outcome: str, *, failed: bool) -> Bill:
        if self._merged is not None:
            await self._merged.stop()
        used, platform_tokens = Used(), 0
        try:
            await asyncio.gather(*(generation.close() for generation in self._generations))
            used, platform_tokens = self._used(failed=failed)
        finally:
            # Whatever went wrong above, nothing stays reserved.
            receipt = await self._hold.settle(self._entry(used, platform_tokens, outcome))
        self._learn(used, outcome)
        clocks = self._generations[0].clocks
        clocks.gateway_total_ms = self._clock.monotonic_ms() - self.facts.arrived_ms
        return Bill(used, receipt, clocks, self._attempts, self._hold.price.version)

    @property
    def _attempts(self) -> int:
        return max(generation.attempts for generation in self._generations)

    def _entry(self, used: Used, platform_tokens: int, outcome: str) -> LedgerEntry:
        facts = self.facts
        held_ms = max(generation.kv_held_ms for generation in self._generations)
        return LedgerEntry(
            request_id=facts.request_id,
            model=facts.model,
            price_version=self._hold.price.version,
            prompt_tokens=used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            output_tokens=used.output_tokens,
            kv_micro=kv_held_micro(
                prompt_tokens=used.prompt_tokens, output_tokens=used.output_tokens, held_ms=held_ms
            ),
            platform_tokens=platform_tokens,
            attempts=self._attempts,
            outcome=outcome,
        )

    def _learn(self, used: Used, outcome: str) -> None:
        if outcome != "ok":
            return
        facts = self.facts
        self._learning.outputs.learn(
            facts.tenant.tenant_id, facts.model, -(-used.output_tokens // facts.choices)
        )
        held_ms = max(generation.kv_held_ms for generation in self._generations)
        self._learning.kv.learn(facts.model, output_tokens=used.output_tokens, held_ms=held_ms)

    def _used(self, *, failed: bool) -> tuple[Used, int]:
        total, platform_tokens = Used(), 0
        for generation in self._generations:
            used = generation.used(failed=failed)
            total.prompt_tokens += used.prompt_tokens
            total.cached_tokens += used.cached_tokens
            total.output_tokens += used.output_tokens
            platform_tokens += generation.platform_tokens(used)
        return total, platform_tokens


def _standing(standing: Standing) -> dict[str, float | None]:
    def tokens(micro: int | None) -> float | None:
        return None if micro is None else micro / MICRO

    return {"limit": tokens(standing.limit_micro), "remaining": tokens(standing.remaining_micro)}


async def collect(run: Run) -> Batch:
    """All batches of a run, for a reply in one piece."""
    batches: Batch = []
    while (batch := await run.next_batch()) is not None:
        batches += batch
    return batches
