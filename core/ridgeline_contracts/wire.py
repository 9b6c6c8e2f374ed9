"""Between the contracts' dataclasses and their protobuf messages. Pure."""

from collections.abc import Iterable

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob
from ridgeline_contracts.step import StepCoefficients

CONTRACT_VERSION = 1
"""Raised when a peer of the old version could misread the new one."""


def sampling_to_wire(params: SamplingParams) -> pb.Sampling:
    message = pb.Sampling(
        max_tokens=params.max_tokens,
        min_tokens=params.min_tokens,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=dict(params.logit_bias),
        stop_token_ids=params.stop_token_ids,
        ignore_eos=params.ignore_eos,
    )
    if params.logprobs is not None:
        message.logprobs = params.logprobs
    if params.seed is not None:
        message.seed = params.seed
    return message


def sampling_from_wire(message: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        logprobs=message.logprobs if message.HasField("logprobs") else None,
        seed=message.seed if message.HasField("seed") else None,
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
    )


def logprob_to_wire(logprob: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        top_tokens=[token for token, _ in logprob.top],
        top_logprobs=[value for _, value in logprob.top],
    )


def logprob_from_wire(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        message.token, message.logprob, tuple(zip(message.top_tokens, message.top_logprobs, strict=True))
    )


def _group_to_wire(group: KVGroup) -> pb.KvGroup:
    message = pb.KvGroup(
        group=group.group,
        layers=group.layers,
        kind=group.kind.value,
        block_tokens=group.block_tokens,
        heads=group.heads,
        head_dim=group.head_dim,
        dtype=group.dtype.value,
        scales=group.scales,
        strides=group.strides,
    )
    if group.window_tokens is not None:
        message.window_tokens = group.window_tokens
    return message


def _group_from_wire(message: pb.KvGroup) -> KVGroup:
    return KVGroup(
        group=GroupId(message.group),
        layers=tuple(message.layers),
        kind=KVKind(message.kind),
        block_tokens=message.block_tokens,
        heads=message.heads,
        head_dim=message.head_dim,
        dtype=KVDtype(message.dtype),
        scales=message.scales,
        window_tokens=message.window_tokens if message.HasField("window_tokens") else None,
    )


def capabilities_to_wire(found: Capabilities) -> pb.Capabilities:
    return pb.Capabilities(
        executor=found.executor,
        device=found.device,
        weights_dtype=found.weights_dtype,
        vocab_tokens=found.vocab_tokens,
        max_context_tokens=found.max_context_tokens,
        max_batch=found.max_batch,
        kv_groups=[_group_to_wire(group) for group in found.kv_groups],
        kinds=_sorted(found.kinds),
        constraints=_sorted(found.constraints),
        max_choices=found.max_choices,
        logprobs=found.logprobs,
        penalties=found.penalties,
        seed=found.seed,
        adapters=found.adapters,
        media=found.media,
        deterministic=found.deterministic,
        kv_transfer=_sorted(found.kv_transfer),
    )


def capabilities_from_wire(message: pb.Capabilities) -> Capabilities:
    return Capabilities(
        executor=message.executor,
        device=message.device,
        weights_dtype=message.weights_dtype,
        vocab_tokens=message.vocab_tokens,
        max_context_tokens=message.max_context_tokens,
        max_batch=message.max_batch,
        kv_groups=tuple(_group_from_wire(group) for group in message.kv_groups),
        kinds=frozenset(message.kinds),
        constraints=frozenset(message.constraints),
        max_choices=message.max_choices,
        logprobs=message.logprobs,
        penalties=message.penalties,
        seed=message.seed,
        adapters=message.adapters,
        media=message.media,
        deterministic=message.deterministic,
        kv_transfer=frozenset(message.kv_transfer),
    )


def step_model_to_wire(found: StepCoefficients) -> pb.StepCoefficients:
    return pb.StepCoefficients(
        base_ms=found.base_ms,
        per_row_ms=found.per_row_ms,
        per_context_token_ms=found.per_context_token_ms,
        per_prefill_token_ms=found.per_prefill_token_ms,
        per_prefill_context_ms=found.per_prefill_context_ms,
    )


def step_model_from_wire(message: pb.StepCoefficients) -> StepCoefficients:
    return StepCoefficients(
        base_ms=message.base_ms,
        per_row_ms=message.per_row_ms,
        per_context_token_ms=message.per_context_token_ms,
        per_prefill_token_ms=message.per_prefill_token_ms,
        per_prefill_context_ms=message.per_prefill_context_ms,
    )


def _sorted(values: Iterable[str]) -> list[str]:
    # A set's order differs between processes; equal capabilities must be equal bytes.
    return sorted(values)
