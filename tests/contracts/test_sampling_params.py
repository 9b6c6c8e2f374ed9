"""Sampling parameters: every field has a range, and a refusal names the field, the value and the range."""

import math
from dataclasses import replace

import pytest
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.sampling import MAX_LOGIT_BIAS_ENTRIES, SamplingParams

GOOD = SamplingParams(max_tokens=16)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        pytest.param({"max_tokens": 0}, "max_tokens", id="no-tokens"),
        pytest.param({"min_tokens": -1}, "min_tokens", id="negative-min"),
        pytest.param({"min_tokens": 17}, "min_tokens", id="min-above-max"),
        pytest.param({"temperature": -0.1}, "temperature", id="cold"),
        pytest.param({"temperature": 2.1}, "temperature", id="hot"),
        pytest.param({"temperature": math.nan}, "temperature", id="nan"),
        pytest.param({"top_p": 0.0}, "top_p", id="top-p-keeps-nothing"),
        pytest.param({"top_p": 1.1}, "top_p", id="top-p-above-one"),
        pytest.param({"top_k": -1}, "top_k", id="negative-top-k"),
        pytest.param({"min_p": math.inf}, "min_p", id="infinite-min-p"),
        pytest.param({"repetition_penalty": 0.0}, "repetition_penalty", id="repetition-zero"),
        pytest.param({"presence_penalty": 2.5}, "presence_penalty", id="presence"),
        pytest.param({"frequency_penalty": -2.5}, "frequency_penalty", id="frequency"),
        pytest.param({"logprobs": 21}, "logprobs", id="too-many-logprobs"),
        pytest.param({"logprobs": -1}, "logprobs", id="negative-logprobs"),
        pytest.param({"seed": 2**64}, "seed", id="seed-too-large"),
        pytest.param({"seed": -1}, "seed", id="seed-negative"),
        pytest.param({"logit_bias": ((1, 101.0),)}, "logit_bias", id="bias-too-large"),
        pytest.param({"logit_bias": ((1, math.nan),)}, "logit_bias", id="bias-nan"),
        pytest.param({"logit_bias": ((100, 1.0),)}, "logit_bias", id="bias-outside-the-vocabulary"),
        pytest.param(
            {"logit_bias": ((1, 1.0),) * (MAX_LOGIT_BIAS_ENTRIES + 1)}, "logit_bias", id="too-many-biases"
        ),
        pytest.param({"stop_token_ids": (100,)}, "stop_token_ids", id="stop-outside-the-vocabulary"),
    ],
)
def test_a_bad_value_is_refused_by_name(changes: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest, match=param) as refused:
        replace(GOOD, **changes).check(vocab_tokens=100)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="defaults"),
        pytest.param({"temperature": 0.0, "min_tokens": 16}, id="greedy-of-fixed-length"),
        pytest.param({"top_k": 2**31 - 1, "min_p": 1.0, "seed": 2**64 - 1, "logprobs": 20}, id="upper-ends"),
        pytest.param(
            {"logit_bias": ((0, -100.0), (99, 100.0)), "stop_token_ids": (0, 99)}, id="vocabulary-ends"
        ),
    ],
)
def test_values_at_the_ends_of_their_ranges_are_accepted(changes: dict[str, object]) -> None:
    replace(GOOD, **changes).check(vocab_tokens=100)
