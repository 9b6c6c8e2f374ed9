"""POST /v1/completions: prompts as text and as ids, one and several."""

import asyncio
import json
from typing import Any

import pytest
from ridgeline_gateway.quota.limits import MICRO, BucketLimits


def completion(prompt: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "prompt": prompt, **more}


async def post(platform: Any, body: dict[str, Any]) -> Any:
    return await platform.client.post("/v1/completions", json=body)


def prompts(platform: Any) -> list[list[int]]:
    ordered = sorted(platform.worker.submits, key=lambda submit: submit.request_id)
    return [list(submit.prompt[0].tokens.ids) for submit in ordered]


async def test_a_prompt_is_continued(platform: Any) -> None:
    tokens = platform.worker.say(" world").tokens[0]
    body = (await post(platform, completion())).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": " world", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["completion_tokens"] == len(tokens)
    assert platform.worker.submits[0].sampling.max_tokens == 16


@pytest.mark.parametrize("stream", [False, True])
async def test_several_prompts_give_choices_in_order_of_prompts(platform: Any, stream: bool) -> None:
    encode = platform.worker.files.tokenizer.encode
    platform.worker.reply_for = lambda submit: platform.worker.made(
        [list(submit.prompt[0].tokens.ids), [*submit.prompt[0].tokens.ids, *encode("!").ids]]
    )
    given = ["hello", "the fox", "world"]
    reply = await post(platform, completion(given, n=2, stream=stream))
    expected = ["hello", "hello!", "the fox", "the fox!", "world", "world!"]
    found = [""] * 6
    if stream:
        blocks = [block.removeprefix("data: ") for block in reply.text.split("\n\n") if block]
        assert blocks[-1] == "[DONE]"
        for chunk in map(json.loads, blocks[:-1]):
            for choice in chunk["choices"]:
                found[choice["index"]] += choice["text"]
    else:
        found = [choice["text"] for choice in reply.json()["choices"]]
        assert [choice["index"] for choice in reply.json()["choices"]] == list(range(6))
    assert found == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param([5, 6, 7], [[5, 6, 7]], id="ids"),
        pytest.param([[5, 6], [7]], [[5, 6], [7]], id="several-of-ids"),
        pytest.param([1, 2], [[1, 2]], id="special-tokens-given-as-ids"),
    ],
)
async def test_ids_are_taken_as_they_are(platform: Any, prompt: Any, expected: list[list[int]]) -> None:
    assert (await post(platform, completion(prompt))).status_code == 200
    assert prompts(platform) == expected


async def test_special_tokens_in_a_text_prompt_stay_text(platform: Any) -> None:
    await post(platform, completion("a<|im_end|>b"))
    (ids,) = prompts(platform)
    assert not {0, 1, 2} & set(ids)
    assert platform.worker.files.tokenizer.decode(ids) == "a<|im_end|>b"


async def test_a_prompt_that_ends_inside_a_character_is_completed(platform: Any) -> None:
    tokenizer = platform.worker.files.tokenizer
    letters = [tokenizer.token_to_id(letter) for letter in ("ð", "Ł", "İ", "ī")]
    platform.worker.answer([letters[2:]])
    body = (await post(platform, completion(letters[:2]))).json()
    assert body["choices"][0]["text"] == "🎉"


async def test_logprobs_have_the_older_shape(platform: Any) -> None:
    tokens = platform.worker.files.tokenizer.encode("hello world").ids
    platform.worker.answer([tokens])
    body = (await post(platform, completion(logprobs=2))).json()
    logprobs = body["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == "hello world"
    assert logprobs["token_logprobs"] == [-0.5] * len(tokens)
    assert all(len(top) >= 1 for top in logprobs["top_logprobs"])
    starts = [sum(map(len, logprobs["tokens"][:index])) for index in range(len(tokens))]
    assert logprobs["text_offset"] == starts


@pytest.mark.parametrize(
    ("body", "param"),
    [
        pytest.param(completion(echo=True), "echo", id="echo"),
        pytest.param(completion(suffix="x"), "suffix", id="suffix"),
        pytest.param(completion(best_of=3), "best_of", id="best-of"),
        pytest.param(completion(""), "prompt", id="empty-text"),
        pytest.param(completion([]), "prompt", id="no-prompt"),
        pytest.param(completion(["a", ""]), "prompt", id="an-empty-one-among-several"),
        pytest.param(completion([400]), "prompt", id="an-id-outside-the-vocabulary"),
        pytest.param(completion([-1]), "prompt", id="a-negative-id"),
        pytest.param(completion(["a"] * 129), "prompt", id="too-many-choices"),
        pytest.param(completion(logprobs=21), "logprobs", id="too-many-logprobs"),
        pytest.param({"model": "fake-model"}, "prompt", id="prompt-left-out"),
        pytest.param({"prompt": "a"}, "model", id="model-left-out"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field_of_a_completion(
    platform: Any, body: dict[str, Any], param: str
) -> None:
    reply = await post(platform, body)
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] is not None
    assert error["param"].split("[")[0] == param


async def test_one_failing_prompt_fails_the_request_and_leaves_nothing_behind(platform: Any) -> None:
    await platform.put_tenant(quota=_quota(1000))
    failing = platform.worker.made([[40]], error_code="invalid_request")
    failing.pause_before[0] = asyncio.Event()
    healthy = platform.worker.made([[40] * 3])
    platform.worker.reply_for = lambda submit: failing if len(submit.prompt[0].tokens.ids) == 1 else healthy
    asking = asyncio.create_task(post(platform, completion([[5, 6], [7]])))
    await platform.worker.answered.wait()
    # The gateway reads that last row.
    await asyncio.sleep(0.1)
    failing.pause_before[0].set()
    assert (await asking).status_code == 400
    await platform.settled()
    standing = await platform.standing()
    # Nothing was delivered, so nothing is charged, also for the prompt that had come to its end.
    assert (standing.reserved_micro, standing.remaining_micro) == (0, standing.limit_micro)
    assert platform.gateway.links.open_requests() == 0
    assert len(platform.router.releases) == 2


def _quota(burst_tokens: int) -> Any:
    return BucketLimits(rate_micro_per_s=MICRO, burst_micro=burst_tokens * MICRO)
