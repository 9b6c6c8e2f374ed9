"""What `Engine.submit` refuses, with the value and the fix in each message."""

import math
from dataclasses import dataclass

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import InvalidRequest, Unsupported
from ridgeline_contracts.sampling import SamplingParams

from ridgeline_engine.request import Request

MAX_STOP_TOKEN_IDS = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """`sequence_tokens` is what prompt and output of one choice may reach: the context, or a smaller pool."""

    capabilities: Capabilities
    sequence_tokens: int
    max_choices: int

    @property
    def is_pool_bound(self) -> bool:
        return self.sequence_tokens < self.capabilities.max_context_tokens


def check_request(request: Request, limits: Limits) -> None:
    """Raises InvalidRequest for a bad value or values that contradict each other, Unsupported for what
    the executor lacks."""
    vocab = limits.capabilities.vocab_tokens
    if not request.prompt:
        raise InvalidRequest("the prompt has no tokens: give at least one", param="prompt")
    _check_ids("prompt", request.prompt, vocab)
    request.sampling.check(vocab_tokens=vocab)
    _check_sampling(request.sampling)
    if request.choices < 1:
        raise InvalidRequest(f"n={request.choices}: give at least 1", param="n")
    if request.choices > limits.max_choices:
        raise Unsupported(f"n={request.choices}: this worker gives at most {limits.max_choices}", param="n")
    if len(request.emitted) > request.choices:
        raise InvalidRequest(
            f"emitted tokens of {len(request.emitted)} choices were given for n={request.choices}",
            param="emitted",
        )
    for emitted in request.emitted:
        _check_ids("emitted", emitted, vocab)
    if not (math.isfinite(request.weight) and request.weight > 0):
        raise InvalidRequest(f"weight={request.weight}: give a number above 0", param="weight")
    _check_length(request, limits)
    _check_least(request, limits)
    _check_supported(request, limits.capabilities)


def _check_ids(name: str, tokens: tuple[int, ...], vocab_tokens: int) -> None:
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_tokens):
        wrong = next(index for index, token in enumerate(tokens) if not 0 <= token < vocab_tokens)
        raise InvalidRequest(
            f"{name} has token id {tokens[wrong]} at position {wrong}: ids go from 0 to {vocab_tokens - 1}",
            param=name,
        )


def _check_sampling(sampling: SamplingParams) -> None:
    """What the ranges of single fields do not tell."""
    if len(sampling.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest(
            f"stop_token_ids has {len(sampling.stop_token_ids)} entries; give at most {MAX_STOP_TOKEN_IDS}",
            param="stop_token_ids",
        )
    biased = [token for token, _ in sampling.logit_bias]
    if len(set(biased)) < len(biased):
        twice = next(token for place, token in enumerate(biased) if token in biased[:place])
        raise InvalidRequest(f"logit_bias names token {twice} twice: give it once", param="logit_bias")


def _check_least(request: Request, limits: Limits) -> None:
    room = limits.sequence_tokens - len(request.prompt)
    if request.sampling.min_tokens > room:
        raise InvalidRequest(
            f"min_tokens={request.sampling.min_tokens} cannot be reached: the prompt leaves room for {room} "
            "tokens; give less, or shorten the prompt",
            param="min_tokens",
        )


def _check_length(request: Request, limits: Limits) -> None:
    longest = len(request.prompt) + max(map(len, request.emitted), default=0)
    if longest < limits.sequence_tokens:
        return
    if limits.is_pool_bound:
        raise InvalidRequest(
            f"{longest} tokens can never fit: the KV pool of this worker holds {limits.sequence_tokens - 1} "
            "of one sequence; shorten the prompt or start the worker with more KV blocks",
            param="prompt",
        )
    raise InvalidRequest(
        f"the prompt has {longest} tokens; the context is {limits.sequence_tokens} and must leave room "
        "for one more: shorten the prompt",
        param="prompt",
    )


def _check_supported(request: Request, capabilities: Capabilities) -> None:
    sampling = request.sampling
    asked = (
        ("logprobs", sampling.logprobs is not None, capabilities.logprobs),
        ("penalties", _has_penalties(sampling), capabilities.penalties),
        ("seed", sampling.seed is not None, capabilities.seed),
        ("adapters", bool(request.adapter_revision), capabilities.adapters),
    )
    for name, wanted, present in asked:
        if wanted and not present:
            raise Unsupported(
                f"{name}: the {capabilities.executor} executor of this worker has none", param=name
            )


def _has_penalties(sampling: SamplingParams) -> bool:
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (
        1.0,
        0.0,
        0.0,
    )
