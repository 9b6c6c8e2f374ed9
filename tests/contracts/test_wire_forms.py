"""Dataclasses survive the wire unchanged, and equal values are equal bytes."""

from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob
from ridgeline_contracts.step import StepCoefficients
from ridgeline_contracts.wire import (
    capabilities_from_wire,
    capabilities_to_wire,
    logprob_from_wire,
    logprob_to_wire,
    sampling_from_wire,
    sampling_to_wire,
    step_model_from_wire,
    step_model_to_wire,
)

halves = st.integers(-200, 200).map(lambda number: number / 2)
float32 = st.floats(width=32, allow_nan=False)
sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**31 - 1),
    min_tokens=st.integers(0, 2**31 - 1),
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 10),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**32 - 1), halves, max_size=5).map(
        lambda found: tuple(sorted(found.items()))
    ),
    logprobs=st.none() | st.integers(0, 20),
    seed=st.none() | st.integers(0, 2**64 - 1),
    stop_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    ignore_eos=st.booleans(),
)
groups = st.builds(
    KVGroup,
    group=st.integers(0, 9).map(GroupId),
    layers=st.lists(st.integers(0, 99), max_size=4).map(tuple),
    kind=st.sampled_from(KVKind),
    block_tokens=st.sampled_from([16, 64]),
    heads=st.integers(1, 64),
    head_dim=st.integers(1, 576),
    dtype=st.sampled_from(KVDtype),
    scales=st.integers(0, 4),
    window_tokens=st.none() | st.integers(1, 8192),
)
names = st.frozensets(st.sampled_from(["generate", "embed", "json_schema", "regex", "tcp", "shm"]))
capabilities = st.builds(
    Capabilities,
    executor=st.sampled_from(["torch", "twin"]),
    device=st.just("cpu"),
    weights_dtype=st.just("bf16"),
    vocab_tokens=st.integers(1, 10**6),
    max_context_tokens=st.integers(1, 10**6),
    max_batch=st.integers(1, 999),
    kv_groups=st.lists(groups, max_size=3).map(tuple),
    kinds=names,
    constraints=names,
    max_choices=st.integers(1, 128),
    logprobs=st.booleans(),
    penalties=st.booleans(),
    seed=st.booleans(),
    adapters=st.booleans(),
    media=st.booleans(),
    deterministic=st.booleans(),
    kv_transfer=names,
)


@given(sampling)
def test_sampling_parameters_survive(params: SamplingParams) -> None:
    sent = sampling_to_wire(params).SerializeToString()
    assert sampling_from_wire(pb.Sampling.FromString(sent)) == params


def test_a_seed_and_logprobs_of_zero_differ_from_none() -> None:
    asked = SamplingParams(max_tokens=1, seed=0, logprobs=0)
    assert sampling_from_wire(sampling_to_wire(asked)) == asked
    silent = SamplingParams(max_tokens=1)
    assert sampling_from_wire(sampling_to_wire(silent)) == silent


@given(capabilities)
def test_capabilities_survive(found: Capabilities) -> None:
    sent = capabilities_to_wire(found).SerializeToString()
    assert capabilities_from_wire(pb.Capabilities.FromString(sent)) == found


def test_equal_capabilities_are_equal_bytes() -> None:
    one = Capabilities("torch", "cpu", "bf16", 10, 10, 1, (), kinds=frozenset({"generate", "embed"}))
    other = Capabilities("torch", "cpu", "bf16", 10, 10, 1, (), kinds=frozenset({"embed", "generate"}))
    assert capabilities_to_wire(one).SerializeToString() == capabilities_to_wire(other).SerializeToString()


@given(st.integers(0, 2**32 - 1), float32, st.lists(st.tuples(st.integers(0, 99), float32), max_size=4))
def test_logprobs_survive(token: int, logprob: float, top: list[tuple[int, float]]) -> None:
    found = TokenLogprob(token, logprob, tuple(top))
    assert logprob_from_wire(logprob_to_wire(found)) == found


@given(st.builds(StepCoefficients, *[st.floats(0, 1e6)] * 5))
def test_step_coefficients_survive(found: StepCoefficients) -> None:
    assert step_model_from_wire(step_model_to_wire(found)) == found
