"""Whatever a request holds: a typed error that names the value and the fix, and the loop goes on for the others."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ridgeline_contracts.errors import CallerError, InvalidRequest, RidgelineError, Unsupported
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import MAX_LOGIT_BIAS_ENTRIES, MAX_LOGPROBS, SamplingParams
from ridgeline_engine.checks import MAX_STOP_TOKEN_IDS
from ridgeline_engine.engine import MAX_CHOICES
from ridgeline_engine.request import FinishReason, Request, RequestKey
from ridgeline_testing.fake_executor import VOCAB_TOKENS, expected_output

MakeBench = Callable[..., Any]
CONTEXT_TOKENS = 512
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
GOOD = tuple((5 * index) % VOCAB_TOKENS for index in range(37))
BEYOND = VOCAB_TOKENS


def _sampling(**changes: Any) -> dict[str, Any]:
    return {"sampling": replace(GREEDY, **changes)}


BAD = [
    # Prompts.
    pytest.param({"prompt": ()}, InvalidRequest, "no tokens: give at least one", id="empty-prompt"),
    pytest.param({"prompt": (1, BEYOND)}, InvalidRequest, f"id {BEYOND} at position 1", id="id-too-large"),
    pytest.param({"prompt": (1, 2**40)}, InvalidRequest, f"token id {2**40}", id="id-far-too-large"),
    pytest.param({"prompt": (-1, 1)}, InvalidRequest, "token id -1 at position 0", id="id-negative"),
    pytest.param(
        {"prompt": (1,) * 512}, InvalidRequest, "512 tokens; the context is 512", id="fills-context"
    ),
    pytest.param({"prompt": (1,) * 9_000}, InvalidRequest, "9000 tokens; the context", id="far-past-context"),
    pytest.param(
        {"emitted": ((BEYOND,),)}, InvalidRequest, f"emitted has token id {BEYOND}", id="emitted-id"
    ),
    pytest.param(
        {"prompt": (1,) * 400, "emitted": ((1,) * 112,)},
        InvalidRequest,
        "512 tokens",
        id="emitted-past-context",
    ),
    pytest.param(
        {"emitted": ((1,), (1,))}, InvalidRequest, "2 choices were given for n=1", id="emitted-of-whom"
    ),
    # Lengths.
    pytest.param(_sampling(max_tokens=0), InvalidRequest, "max_tokens=0 is out of range", id="max-tokens-0"),
    pytest.param(_sampling(max_tokens=-5), InvalidRequest, "max_tokens=-5", id="max-tokens-negative"),
    pytest.param(_sampling(max_tokens=2**31), InvalidRequest, f"max_tokens={2**31}", id="max-tokens-huge"),
    pytest.param(
        _sampling(max_tokens=10**30), InvalidRequest, f"max_tokens={10**30}", id="max-tokens-absurd"
    ),
    pytest.param(_sampling(min_tokens=-1), InvalidRequest, "min_tokens=-1", id="min-tokens-negative"),
    pytest.param(
        _sampling(min_tokens=13),
        InvalidRequest,
        "min_tokens=13 is more than max_tokens=12",
        id="least-above-most",
    ),
    pytest.param(
        _sampling(max_tokens=2**31 - 1, min_tokens=476),
        InvalidRequest,
        "min_tokens=476 cannot be reached: the prompt leaves room for 475",
        id="a-least-that-no-context-holds",
    ),
    # Each parameter on its own.
    pytest.param(_sampling(temperature=-0.1), InvalidRequest, "temperature=-0.1", id="temperature-negative"),
    pytest.param(_sampling(temperature=2.1), InvalidRequest, "temperature=2.1", id="temperature-too-hot"),
    pytest.param(_sampling(temperature=math.nan), InvalidRequest, "temperature=nan", id="temperature-nan"),
    pytest.param(
        _sampling(temperature=math.inf), InvalidRequest, "temperature=inf", id="temperature-infinite"
    ),
    pytest.param(_sampling(top_p=0.0), InvalidRequest, "top_p=0 keeps no token", id="top-p-0"),
    pytest.param(_sampling(top_p=1.5), InvalidRequest, "top_p=1.5", id="top-p-above-1"),
    pytest.param(_sampling(top_p=math.nan), InvalidRequest, "top_p=nan", id="top-p-nan"),
    pytest.param(_sampling(top_k=-1), InvalidRequest, "top_k=-1", id="top-k-negative"),
    pytest.param(_sampling(min_p=-0.1), InvalidRequest, "min_p=-0.1", id="min-p-negative"),
    pytest.param(_sampling(min_p=1.01), InvalidRequest, "min_p=1.01", id="min-p-above-1"),
    pytest.param(
        _sampling(repetition_penalty=0.0), InvalidRequest, "repetition_penalty=0", id="repetition-0"
    ),
    pytest.param(
        _sampling(repetition_penalty=-1.0), InvalidRequest, "repetition_penalty=-1", id="repetition-minus"
    ),
    pytest.param(_sampling(presence_penalty=2.5), InvalidRequest, "presence_penalty=2.5", id="presence"),
    pytest.param(_sampling(frequency_penalty=-9.0), InvalidRequest, "frequency_penalty=-9", id="frequency"),
    pytest.param(
        _sampling(frequency_penalty=math.nan), InvalidRequest, "frequency_penalty=nan", id="frequency-nan"
    ),
    pytest.param(_sampling(logprobs=-1), InvalidRequest, "logprobs=-1", id="logprobs-negative"),
    pytest.param(
        _sampling(logprobs=MAX_LOGPROBS + 1),
        InvalidRequest,
        f"logprobs={MAX_LOGPROBS + 1}",
        id="logprobs-many",
    ),
    pytest.param(_sampling(seed=-1), InvalidRequest, "seed=-1", id="seed-negative"),
    pytest.param(_sampling(seed=2**64), InvalidRequest, f"seed={2**64}", id="seed-too-large"),
    pytest.param(
        _sampling(stop_token_ids=(1, BEYOND)),
        InvalidRequest,
        f"stop_token_ids names token {BEYOND}",
        id="stop-id",
    ),
    pytest.param(
        _sampling(stop_token_ids=(-1,)), InvalidRequest, "stop_token_ids names token -1", id="stop-minus"
    ),
    pytest.param(
        _sampling(logit_bias=((BEYOND, 1.0),)),
        InvalidRequest,
        f"logit_bias names token {BEYOND}",
        id="bias-id",
    ),
    pytest.param(_sampling(logit_bias=((1, 101.0),)), InvalidRequest, "token 1 is 101", id="bias-too-large"),
    pytest.param(_sampling(logit_bias=((1, math.nan),)), InvalidRequest, "token 1 is nan", id="bias-nan"),
    pytest.param(
        _sampling(logit_bias=((1, 0.0),) * (MAX_LOGIT_BIAS_ENTRIES + 1)),
        InvalidRequest,
        f"logit_bias has {MAX_LOGIT_BIAS_ENTRIES + 1} entries",
        id="bias-of-many",
    ),
    pytest.param(
        _sampling(logit_bias=((1, 1.0), (1, -1.0))),
        InvalidRequest,
        "names token 1 twice",
        id="bias-given-twice",
    ),
    pytest.param(
        _sampling(stop_token_ids=(1,) * (MAX_STOP_TOKEN_IDS + 1)),
        InvalidRequest,
        f"stop_token_ids has {MAX_STOP_TOKEN_IDS + 1} entries",
        id="too-many-stop-ids",
    ),
    # The request around them.
    pytest.param({"choices": 0}, InvalidRequest, "n=0: give at least 1", id="no-choice"),
    pytest.param({"choices": -3}, InvalidRequest, "n=-3", id="choices-negative"),
    pytest.param({"choices": MAX_CHOICES + 1}, Unsupported, f"n={MAX_CHOICES + 1}", id="too-many-choices"),
    pytest.param({"weight": 0.0}, InvalidRequest, "weight=0.0", id="weight-0"),
    pytest.param({"weight": -1.0}, InvalidRequest, "weight=-1", id="weight-negative"),
    pytest.param({"weight": math.nan}, InvalidRequest, "weight=nan", id="weight-nan"),
    pytest.param({"weight": math.inf}, InvalidRequest, "weight=inf", id="weight-infinite"),
    pytest.param({"adapter_revision": "x"}, Unsupported, "adapters", id="no-adapters-here"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BAD)
def test_a_bad_value_is_refused_by_name_and_the_others_go_on(
    bench: Any, changes: dict[str, Any], error: type[RidgelineError], message: str
) -> None:
    good = bench.submit("good", GOOD, GREEDY)
    bench.step(3)
    fields = {"prompt": GOOD, "sampling": GREEDY, **changes}
    with pytest.raises(error, match=message) as refused:
        bench.engine.submit(Request(RequestKey(RequestId("bad"), Attempt(0)), **fields))
    assert isinstance(refused.value, CallerError)
    assert refused.value.param
    bench.engine.check()
    bench.run()
    assert bench.output(good) == expected_output(GOOD, GREEDY)
    assert {row.key for row in bench.rows} == {good}
    # The id of what was refused is free.
    again = bench.submit("bad", GOOD, GREEDY)
    bench.run()
    assert bench.output(again) == expected_output(GOOD, GREEDY)


@pytest.mark.parametrize(
    ("changes", "tokens", "reason"),
    [
        pytest.param(
            {"max_tokens": 2**31 - 1}, CONTEXT_TOKENS - len(GOOD), FinishReason.LENGTH, id="most-is-clipped"
        ),
        pytest.param(
            {"temperature": 2.0, "top_k": 2**31 - 1}, 12, FinishReason.LENGTH, id="the-ends-of-ranges"
        ),
        pytest.param({"temperature": 1.0, "top_p": 1e-300}, 12, FinishReason.LENGTH, id="a-nucleus-of-one"),
        pytest.param({"temperature": 1e-300}, 12, FinishReason.LENGTH, id="a-temperature-next-to-0"),
        pytest.param(
            {"stop_token_ids": tuple(range(VOCAB_TOKENS))}, 1, FinishReason.STOP, id="everything-is-an-end"
        ),
    ],
)
def test_extreme_but_legal_values_give_a_text_of_their_length(
    bench: Any, changes: dict[str, Any], tokens: int, reason: FinishReason
) -> None:
    key = bench.submit("odd", GOOD, replace(GREEDY, **changes))
    bench.run()
    assert len(bench.output(key)) == tokens
    assert bench.finish(key).reason is reason


def test_values_that_leave_no_token_fail_that_request_alone(bench: Any) -> None:
    good = bench.submit("good", GOOD, GREEDY)
    nothing = replace(GREEDY, min_tokens=3, stop_token_ids=tuple(range(VOCAB_TOKENS)))
    bad = bench.submit("bad", GOOD, nothing)
    bench.run()
    finish = bench.finish(bad)
    assert finish.reason is FinishReason.ERROR
    assert "no token is allowed" in str(finish.error)
    assert bench.output(good) == expected_output(GOOD, GREEDY)


def test_a_pool_smaller_than_the_context_says_so(make_bench: MakeBench) -> None:
    bench = make_bench(blocks=3)
    with pytest.raises(InvalidRequest, match=r"49 tokens can never fit.*holds 48.*more KV blocks"):
        bench.submit("bad", (1,) * 49, GREEDY)
    good = bench.submit("good", GOOD, GREEDY)
    bench.run()
    assert len(bench.output(good)) == 12
