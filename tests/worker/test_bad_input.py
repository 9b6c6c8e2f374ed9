"""A Submit that asks for nonsense ends in a row that names the value; the same core serves the next one."""

import math
from typing import Any

import pytest
from ridgeline_contracts.proto import worker_pb2 as pb
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_testing.fake_executor import VOCAB_TOKENS, expected_output

GOOD = [1, 5, 9, 2, 6]
GREEDY = SamplingParams(max_tokens=4, temperature=0.0)


def _sampling(**changes: Any) -> dict[str, Any]:
    fields = {"max_tokens": 4, "temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, **changes}
    return {"sampling": pb.Sampling(**fields)}


BAD = [
    pytest.param([], {}, "the prompt has no tokens", id="empty-prompt"),
    pytest.param([1, VOCAB_TOKENS], {}, f"token id {VOCAB_TOKENS} at position 1", id="id-out-of-range"),
    pytest.param([2**32 - 1], {}, f"token id {2**32 - 1} at position 0", id="the-largest-id-of-the-wire"),
    pytest.param([1] * 512, {}, "512 tokens; the context is 512", id="past-the-context"),
    pytest.param(GOOD, _sampling(max_tokens=0), "max_tokens=0", id="max-tokens-0"),
    pytest.param(GOOD, _sampling(max_tokens=2**32 - 1), f"max_tokens={2**32 - 1}", id="max-tokens-huge"),
    pytest.param(GOOD, _sampling(min_tokens=9), "min_tokens=9 is more than max_tokens=4", id="contradiction"),
    pytest.param(GOOD, _sampling(temperature=math.nan), "temperature=nan", id="temperature-nan"),
    pytest.param(GOOD, _sampling(top_p=0.0), "top_p=0", id="top-p-unset"),
    pytest.param(GOOD, _sampling(min_p=7.0), "min_p=7", id="min-p"),
    pytest.param(GOOD, _sampling(repetition_penalty=0.0), "repetition_penalty=0", id="repetition-unset"),
    pytest.param(GOOD, _sampling(logit_bias={1: math.inf}), "token 1 is inf", id="bias-infinite"),
    pytest.param(GOOD, _sampling(logit_bias={VOCAB_TOKENS: 1.0}), f"token {VOCAB_TOKENS}", id="bias-id"),
    pytest.param(GOOD, _sampling(stop_token_ids=[VOCAB_TOKENS]), f"token {VOCAB_TOKENS}", id="stop-id"),
    pytest.param(GOOD, _sampling(logprobs=400), "logprobs=400", id="logprobs"),
    pytest.param(GOOD, {"weight": math.nan}, "weight=nan", id="weight-nan"),
    pytest.param(GOOD, {"weight": math.inf}, "weight=inf", id="weight-infinite"),
    pytest.param(GOOD, {"n": 1_000}, "n=1000", id="too-many-choices"),
]


async def test_bad_input_of_every_kind_is_answered_and_the_core_lives_on(start_worker: Any) -> None:
    worker = await start_worker(factory="small_engine:build_engine")
    stream = await worker.stream()
    for number, case in enumerate(BAD):
        prompt, fields, said = case.values
        choices = fields.get("n", 1)
        await stream.submit(f"bad-{number}", prompt, **fields)
        await stream.submit(f"good-{number}", GOOD)
        rows = await stream.rows_until_finished(choices + 1)
        for choice in range(choices):
            (row,) = rows[f"bad-{number}", choice]
            assert row.finish.reason == pb.FINISH_REASON_ERROR, case.id
            assert row.finish.error_code in ("invalid_request", "unsupported"), case.id
            assert said in row.finish.error_message, (case.id, row.finish.error_message)
        good = [token for row in rows[f"good-{number}", 0] for token in row.tokens]
        assert tuple(good) == expected_output(tuple(GOOD), GREEDY), case.id
    # One core answered all of it.
    assert len(stream.hellos) == 1
    await stream.call.done_writing()
