"""One request's reservation while it runs: topped up ahead of use, then settled at its price."""

import asyncio
import contextlib
from dataclasses import dataclass, replace

from ridgeline_contracts.errors import Cancelled, RateLimited

from ridgeline_gateway.ledger.record import LedgerEntry
from ridgeline_gateway.prices.price import Price
from ridgeline_gateway.quota.desk import Grant, QuotaDesk, Receipt
from ridgeline_gateway.quota.limits import Amounts
from ridgeline_gateway.redis_link import StoreUnreachable

_AHEAD_TOKENS = 32
_LEAST_STEP_TOKENS = 64


@dataclass(frozen=True, slots=True)
class HoldPlan:
    """What a request reserves. Token counts are over all choices and prompts."""

    price: Price
    prompt_tokens: int
    reserved_output_tokens: int
    most_output_tokens: int
    kv_micro: int

    def tokens_micro(self, output_tokens: int) -> int:
        """To be reserved for so much output. The prompt counts as if nothing of it were cached."""
        dearest = max(self.price.weights.prompt, self.price.weights.cached)
        return self.prompt_tokens * dearest + output_tokens * self.price.weights.output

    @property
    def wanted(self) -> Amounts:
        return Amounts(self.tokens_micro(self.reserved_output_tokens), self.kv_micro)


class Hold:
    """A top-up runs beside the tasks that deliver; raising to the same total twice is harmless."""

    def __init__(self, desk: QuotaDesk, grant: Grant, plan: HoldPlan) -> None:
        self._desk = desk
        self._plan = plan
        self._output = plan.reserved_output_tokens
        self._raising: asyncio.Task[None] | None = None
        self.grant = grant

    @property
    def price(self) -> Price:
        return self._plan.price

    @property
    def is_whole(self) -> bool:
        """All that the request can use is reserved: there is nothing to cover."""
        return self._output >= self._plan.most_output_tokens

    async def cover(self, output_tokens: int) -> None:
        """Makes sure that so much output is reserved before it is delivered, and starts to reserve what comes next.

        Raises RateLimited when bucket and debt cap do not hold it.
        """
        while output_tokens > self._output and not self.is_whole:
            await self._raise()
        if self._raising is not None and self._raising.done() and self._raising.exception() is None:
            self._raising = None
        if output_tokens + _AHEAD_TOKENS > self._output and self._raising is None and not self.is_whole:
            self._raising = asyncio.create_task(self._raise_to(self._next()))

    async def settle(self, entry: LedgerEntry) -> Receipt:
        """Charges the entry's counts at the price. Output beyond what is reserved (a worker's overshoot, tokens
        that a refused top-up kept back) becomes the platform's cost. Call it once."""
        if self._raising is not None:
            # Its outcome is of no interest any more, but it must not come after the settlement.
            await asyncio.gather(self._raising, return_exceptions=True)
        if entry.outcome == Cancelled.code:
            # What the worker had made when it heard of the cancel may be ahead of what was reserved for delivery.
            await self._cover_if_possible(entry.output_tokens)
        entry = self._within_reserved(entry)
        charged = self._cost(entry)
        return await self._desk.settle(self.grant, Amounts(charged, entry.kv_micro), entry.to_json())

    async def _cover_if_possible(self, output_tokens: int) -> None:
        wanted = min(output_tokens, self._plan.most_output_tokens)
        if wanted > self._output:
            with contextlib.suppress(RateLimited, StoreUnreachable):
                await self._raise_to(wanted)

    def _within_reserved(self, entry: LedgerEntry) -> LedgerEntry:
        excess = self._cost(entry) - self.grant.held.tokens_micro
        if excess <= 0:
            return entry
        beyond = min(entry.output_tokens, -(-excess // self.price.weights.output))
        return replace(
            entry,
            output_tokens=entry.output_tokens - beyond,
            platform_tokens=entry.platform_tokens + beyond,
        )

    def _cost(self, entry: LedgerEntry) -> int:
        return self.price.weights.of(
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=entry.cached_tokens,
            output_tokens=entry.output_tokens,
        )

    async def _raise(self) -> None:
        raising, self._raising = self._raising, None
        await (self._raise_to(self._next()) if raising is None else raising)

    async def _raise_to(self, output_tokens: int) -> None:
        await self._desk.raise_to(self.grant, self._plan.tokens_micro(output_tokens))
        self._output = max(self._output, output_tokens)

    def _next(self) -> int:
        step = max(_LEAST_STEP_TOKENS, self._output // 2)
        return min(self._plan.most_output_tokens, self._output + step)
