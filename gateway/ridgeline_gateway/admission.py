"""From a parsed request to a running one: prompts encoded, limits checked, quota reserved."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from ridgeline_contracts.blockhash import HashScope, block_hashes
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import BlockHash, RequestId
from ridgeline_contracts.sampling import SamplingParams

from ridgeline_gateway.api_chat import ChatBody, ChatMessage, template_messages
from ridgeline_gateway.api_common import GenerationBody, sampling_params, text_rules
from ridgeline_gateway.api_completions import DEFAULT_OUTPUT_TOKENS, CompletionBody, Prompt
from ridgeline_gateway.api_errors import ContextTooLong
from ridgeline_gateway.generation import Fleet, Generation
from ridgeline_gateway.job import Job
from ridgeline_gateway.prices.book import PriceBook
from ridgeline_gateway.prices.price import Price
from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.desk import QuotaDesk, wanted_within
from ridgeline_gateway.quota.hold import Hold, HoldPlan
from ridgeline_gateway.run import Learning, Run, RunFacts
from ridgeline_gateway.served_models import ServedModel, ServedModels
from ridgeline_gateway.tenants import Tenant, TenantClass
from ridgeline_gateway.text_model import check_token_ids

_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class Arrival:
    """Who asks, and when the request came."""

    request_id: RequestId
    tenant: Tenant
    arrived_ms: float
    deadline_after_ms: int
    """How long the client waits, from the arrival."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    ids: tuple[int, ...]
    hashes: tuple[BlockHash, ...]


_Encode: TypeAlias = Callable[[], Sequence[int]]


class Admission:
    """Admits requests of both generation endpoints."""

    def __init__(
        self,
        fleet: Fleet,
        models: ServedModels,
        desk: QuotaDesk,
        *,
        prices: PriceBook,
        learning: Learning,
        pepper: bytes,
    ) -> None:
        self._fleet = fleet
        self._models = models
        self._desk = desk
        self._prices = prices
        self._learning = learning
        self._pepper = pepper

    async def chat(self, arrival: Arrival, body: ChatBody) -> Run:
        """Raises CallerError for what the request, the tenant or the pool does not allow; PeerError without workers."""
        body.check()
        messages = body.template_messages()
        model = await self._models.resolve(arrival.tenant, body.model)
        size = sum(len(message["content"]) for message in messages)
        prompt = await self._encoded(
            lambda: model.text.encode_chat(messages), arrival.tenant, model, size=size
        )
        price = await self._prices.current(model.name)
        default = self._fleet.limits.default_output_tokens
        limit = self._output_limit(arrival.tenant, model, [prompt], body, body.output_limit, default, price)
        params = sampling_params(body, model, max_tokens=limit, logprobs=body.top_count)
        stated = body.output_limit is not None
        return await self._run(arrival, model, [prompt], body, params, price, stated=stated)

    async def count(self, tenant: Tenant, model_name: str, messages: list[ChatMessage]) -> int:
        """Tokens of the prompt that these messages make. Raises as `chat` does; reserves and charges nothing."""
        model = await self._models.resolve(tenant, model_name)
        rendered = template_messages(messages)
        size = sum(len(message["content"]) for message in rendered)
        return len(
            (await self._encoded(lambda: model.text.encode_chat(rendered), tenant, model, size=size)).ids
        )

    async def completion(self, arrival: Arrival, body: CompletionBody) -> Run:
        """As `chat`, for one or several plain prompts."""
        body.check()
        model = await self._models.resolve(arrival.tenant, body.model)
        given = body.prompts()
        if len(given) * body.choices > self._fleet.limits.max_choices:
            raise InvalidRequest(
                f"{len(given)} prompts x n={body.choices} is too much: at most "
                f"{self._fleet.limits.max_choices} choices",
                param="prompt",
            )
        prompts = [await self._encoded_plain(prompt, arrival.tenant, model) for prompt in given]
        price = await self._prices.current(model.name)
        limit = self._output_limit(
            arrival.tenant, model, prompts, body, body.max_tokens, DEFAULT_OUTPUT_TOKENS, price
        )
        params = sampling_params(body, model, max_tokens=limit, logprobs=body.logprobs)
        # OpenAI's default for completions is short, and reserved whole.
        return await self._run(arrival, model, prompts, body, params, price, stated=True)

    async def _encoded_plain(self, prompt: Prompt, tenant: Tenant, model: ServedModel) -> _Encoded:
        if isinstance(prompt, str):
            return await self._encoded(
                lambda: model.text.encode_text(prompt), tenant, model, size=len(prompt)
            )
        check_token_ids(prompt, vocab_tokens=model.capabilities.vocab_tokens, param="prompt")
        return await self._encoded(lambda: prompt, tenant, model, size=len(prompt))

    async def _encoded(self, encode: _Encode, tenant: Tenant, model: ServedModel, *, size: int) -> _Encoded:
        scope = HashScope(salt=self._cache_salt(tenant), weights_revision=model.variant.weights_revision)

        def work() -> _Encoded:
            ids = tuple(encode())
            return _Encoded(ids, tuple(block_hashes(scope, ids)))

        if size < self._fleet.limits.encode_in_thread_characters:
            return work()
        return await asyncio.to_thread(work)

    def _output_limit(
        self,
        tenant: Tenant,
        model: ServedModel,
        prompts: Sequence[_Encoded],
        body: GenerationBody,
        stated: int | None,
        default: int,
        price: Price,
    ) -> int:
        """Tokens that each choice may have. Raises ContextTooLong or InvalidRequest."""
        context = min(model.capabilities.max_context_tokens, tenant.max_context_tokens or 2**31)
        longest = max(len(prompt.ids) for prompt in prompts)
        if not min(len(prompt.ids) for prompt in prompts):
            raise InvalidRequest("a prompt is empty: give it text or token ids", param="prompt")
        room = context - longest
        if room < max(1, stated or 1):
            wants = "" if stated is None else f" and {stated} for the completion"
            raise ContextTooLong(
                f"the context holds {context} tokens; this request has {longest} in the prompt{wants}",
                param="messages" if isinstance(body, ChatBody) else "prompt",
            )
        if stated is not None:
            if tenant.max_output_tokens is not None and stated > tenant.max_output_tokens:
                raise InvalidRequest(
                    f"max_tokens={stated} is more than your limit of {tenant.max_output_tokens}",
                    param="max_tokens",
                )
            return stated
        return min(
            room, default, tenant.max_output_tokens or default, self._affordable(tenant, prompts, body, price)
        )

    def _affordable(
        self, tenant: Tenant, prompts: Sequence[_Encoded], body: GenerationBody, price: Price
    ) -> int:
        """What a full bucket could pay for each choice: a default must not ask for what can never fit."""
        if tenant.quota is None:
            return 2**31
        prompt_micro = price.weights.prompt * sum(len(prompt.ids) for prompt in prompts)
        left_micro = tenant.quota.burst_micro - prompt_micro
        return max(1, left_micro // (price.weights.output * len(prompts) * body.choices))

    async def _run(
        self,
        arrival: Arrival,
        model: ServedModel,
        prompts: Sequence[_Encoded],
        body: GenerationBody,
        params: SamplingParams,
        price: Price,
        *,
        stated: bool,
    ) -> Run:
        fleet, tenant = self._fleet, arrival.tenant
        rules = text_rules(body, logprobs=params.logprobs is not None, limits=fleet.limits)
        choices = len(prompts) * body.choices
        plan = self._hold_plan(tenant, model, prompts, price, params.max_tokens, choices, stated=stated)
        template = Job(
            request_id=arrival.request_id,
            tenant=tenant,
            cache_salt=self._cache_salt(tenant),
            variant=model.variant,
            table=model.text.table,
            prompt=(),
            block_hashes=(),
            choices=body.choices,
            sampling=params,
            rules=rules,
            deadline_ms=arrival.arrived_ms + arrival.deadline_after_ms,
            # Batch work is there to wait.
            ttft_target_ms=fleet.timing.ttft_target_ms
            if tenant.tenant_class is TenantClass.INTERACTIVE
            else None,
        )
        facts = RunFacts(
            request_id=arrival.request_id,
            tenant=tenant,
            model=model.name,
            fingerprint=f"fp_{model.variant.weights_revision[:12]}",
            created_s=int(fleet.clock.wall_ms() // 1000),
            arrived_ms=arrival.arrived_ms,
            choices=choices,
            prompt_tokens=plan.prompt_tokens,
        )
        lease_id = LeaseId(arrival.request_id)
        grant = await self._desk.reserve(tenant, lease_id, wanted_within(plan.wanted, tenant))
        # No await from here on: what is reserved is the run's to settle.
        generations = [
            Generation(job, fleet, arrived_ms=arrival.arrived_ms, hold=not body.stream)
            for job in _jobs(template, prompts)
        ]
        return Run(
            facts,
            generations,
            Hold(self._desk, grant, plan),
            learning=self._learning,
            clock=fleet.clock,
            background=fleet.background,
        )

    def _hold_plan(
        self,
        tenant: Tenant,
        model: ServedModel,
        prompts: Sequence[_Encoded],
        price: Price,
        max_tokens: int,
        choices: int,
        *,
        stated: bool,
    ) -> HoldPlan:
        """All of a stated max_tokens; of a default what such replies needed so far, topped up as they grow."""
        learning, prompt_tokens = self._learning, sum(len(prompt.ids) for prompt in prompts)
        each = max_tokens
        if not stated:
            each = learning.outputs.tokens(tenant.tenant_id, model.name, most=max_tokens)
        kv_micro = 0
        if tenant.kv_quota is not None:
            kv_micro = learning.kv.kv_micro(
                model.name, prompt_tokens=prompt_tokens, output_tokens=each * choices
            )
        return HoldPlan(price, prompt_tokens, each * choices, max_tokens * choices, kv_micro)

    def _cache_salt(self, tenant: Tenant) -> bytes:
        """Equal for tenants of one trust group, on every gateway with the same pepper; unknown to everybody else."""
        group = f"tenant {tenant.tenant_id}" if tenant.trust_group is None else f"group {tenant.trust_group}"
        return hmac.new(self._pepper, f"cache salt of {group}".encode(), hashlib.sha256).digest()[
            :_SALT_BYTES
        ]


def _jobs(template: Job, prompts: Sequence[_Encoded]) -> list[Job]:
    if len(prompts) == 1:
        return [replace(template, prompt=prompts[0].ids, block_hashes=prompts[0].hashes)]
    return [
        replace(
            template,
            request_id=RequestId(f"{template.request_id}-{index}"),
            prompt=prompt.ids,
            block_hashes=prompt.hashes,
        )
        for index, prompt in enumerate(prompts)
    ]
