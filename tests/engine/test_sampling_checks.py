"""Sampling parameters that cannot be meant are refused with the value and the fix, before anything is queued."""

import math
from dataclasses import replace

import pytest
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.checks import MAX_STOP_TOKEN_IDS, Limits, check_request
from ridgeline_engine.request import Request, RequestKey

LIMITS = Limits(
    Capabilities(
        executor="torch",
        device="cpu",
        weights_dtype="fp32",
        vocab_tokens=100,
        max_context_tokens=64,
        max_batch=4,
        kv_groups=(),
        logprobs=True,
        penalties=True,
        seed=True,
    ),
    sequence_tokens=64,
    max_choices=4,
)
GOOD = SamplingParams(max_tokens=100)
PROMPT = (1,) * 60


def request_of(sampling: SamplingParams) -> Request:
    return Request(RequestKey(RequestId("a"), Attempt(0)), PROMPT, sampling)


@pytest.mark.parametrize(
    ("changes", "param", "says"),
    [
        pytest.param({"top_k": -3}, "top_k", "top_k=-3 .* give 0 to", id="negative-top-k"),
        pytest.param({"temperature": -1.0}, "temperature", "temperature=-1.0 .* give 0 to 2", id="negative"),
        pytest.param({"temperature": math.nan}, "temperature", "temperature=nan .* give 0 to 2", id="nan"),
        pytest.param({"top_p": 0.0}, "top_p", "top_p=0 keeps no token: give more than 0", id="top-p-0"),
        pytest.param(
            {"min_tokens": 101}, "min_tokens", "min_tokens=101 is more than max_tokens=100", id="min"
        ),
        pytest.param(
            {"min_tokens": 5},
            "min_tokens",
            "min_tokens=5 .* leaves room for 4 tokens",
            id="min-past-the-room",
        ),
        pytest.param(
            {"logit_bias": ((3, 1.0), (3, -1.0))},
            "logit_bias",
            "logit_bias names token 3 twice: give it once",
            id="two-biases",
        ),
        pytest.param({"logit_bias": ((3, 1e9),)}, "logit_bias", "token 3 is 1000000000.0", id="bias-range"),
        pytest.param(
            {"logit_bias": ((100, 1.0),)}, "logit_bias", "token 100; the vocabulary has 100", id="id"
        ),
        pytest.param(
            {"stop_token_ids": (5,) * (MAX_STOP_TOKEN_IDS + 1)},
            "stop_token_ids",
            "257 entries; give at most 256",
            id="too-many-stops",
        ),
        pytest.param({"logprobs": 21}, "logprobs", "logprobs=21 .* give 0 to 20", id="too-many-logprobs"),
    ],
)
def test_contradictory_or_unusable_sampling_is_refused_by_value_and_fix(
    changes: dict[str, object], param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says) as refused:
        check_request(request_of(replace(GOOD, **changes)), LIMITS)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"temperature": 1e-50}, id="a-temperature-that-float32-holds-as-0"),
        pytest.param({"min_tokens": 4}, id="min-tokens-that-just-fit"),
        pytest.param({"logit_bias": ((3, 1.0), (4, 1.0))}, id="equal-biases"),
        pytest.param({"stop_token_ids": (5,) * MAX_STOP_TOKEN_IDS}, id="most-stops"),
        pytest.param({"top_k": 2**31 - 1, "top_p": 1e-9, "min_p": 1.0}, id="ends-of-ranges"),
    ],
)
def test_what_is_just_inside_is_taken(changes: dict[str, object]) -> None:
    check_request(request_of(replace(GOOD, **changes)), LIMITS)
