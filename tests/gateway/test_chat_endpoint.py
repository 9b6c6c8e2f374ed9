"""POST /v1/chat/completions against workers that speak the contract."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ridgeline_contracts.proto import worker_pb2


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


def events(text: str) -> list[Any]:
    """The data of each event."""
    found = [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]
    return [data if data == "[DONE]" else json.loads(data) for data in found]


async def post(platform: Any, body: dict[str, Any]) -> Any:
    return await platform.client.post("/v1/chat/completions", json=body)


async def test_a_whole_reply_has_text_usage_quota_and_clocks(platform: Any, model_files: Any) -> None:
    reply_tokens = platform.worker.say("hello world", cached_tokens=3).tokens[0]
    reply = await post(platform, chat())
    assert reply.status_code == 200, reply.text
    body = reply.json()
    prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    prompt_tokens = len(model_files.tokenizer.encode(prompt, add_special_tokens=False).ids)
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(reply_tokens),
        "total_tokens": prompt_tokens + len(reply_tokens),
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    extension = body["ridgeline"]
    assert extension["request_id"] == reply.headers["x-request-id"]
    assert extension["cached_tokens"] == 3
    assert extension["clocks"]["engine_ttft_ms"] == 2.5
    assert extension["clocks"]["router_estimated_ttft_ms"] == 7.0
    assert extension["clocks"]["gateway_ttft_ms"] <= extension["clocks"]["gateway_total_ms"]
    assert extension["quota"]["charged"] == prompt_tokens + len(reply_tokens)
    assert extension["quota"]["limit"] is None
    assert "engine_ttft;dur=2.5" in reply.headers["server-timing"]


async def test_a_stream_gives_the_same_text_piece_by_piece(platform: Any) -> None:
    platform.worker.say("hello world")
    reply = await post(platform, chat(stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    found = events(reply.text)
    assert found[-1] == "[DONE]"
    chunks = found[:-1]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hello world"
    assert [
        chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]
    ] == ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    # Who did not ask for usage gets no chunk without choices; the clocks come with the last one.
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["ridgeline"]["clocks"]["engine_total_ms"] == 3.5


async def test_usage_comes_in_a_last_chunk_of_its_own_when_it_is_asked_for(platform: Any) -> None:
    reply_tokens = platform.worker.say("hello world", cached_tokens=2).tokens[0]
    reply = await post(platform, chat(stream=True, stream_options={"include_usage": True}))
    chunks = events(reply.text)[:-1]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(reply_tokens)
    assert chunks[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert chunks[-1]["ridgeline"]["quota"]["unit"] == "resource-tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_come_from_one_submission(platform: Any, stream: bool) -> None:
    texts = ["hello", "hello world", "the fox"]
    tokens = [platform.worker.files.tokenizer.encode(text).ids for text in texts]
    platform.worker.answer(tokens)
    reply = await post(platform, chat(n=3, stream=stream))
    found = ["", "", ""]
    if stream:
        for chunk in events(reply.text)[:-1]:
            for choice in chunk["choices"]:
                found[choice["index"]] += choice["delta"].get("content", "")
    else:
        found = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert found == texts
    assert [submit.n for submit in platform.worker.submits] == [3]
    assert platform.worker.submits[0].request_id == reply.headers["x-request-id"]


async def test_a_stop_string_cuts_the_text_cancels_at_the_worker_and_ends_the_charge(platform: Any) -> None:
    tokens = platform.worker.say("hello world, hello there").tokens[0]
    shown = platform.worker.files.tokenizer
    needed = next(count for count in range(len(tokens)) if "wor" in shown.decode(tokens[:count]))
    reply = await post(platform, chat(stop=["wor", "never"]))
    choice = reply.json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("hello ", "stop")
    assert reply.json()["usage"]["completion_tokens"] == needed
    await platform.settled()
    assert platform.worker.submits[0].sampling.max_tokens == 2048


async def test_a_stop_string_ends_a_reply_that_would_go_on_for_ever(platform: Any) -> None:
    reply = platform.worker.say("hello world and more", step_tokens=100)
    reply.tokens = [reply.tokens[0][:-1] * 50]
    reply.pause_before[1] = asyncio.Event()
    answer = await post(platform, chat(stop="world", stream=True))
    chunks = events(answer.text)[:-1]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "hello "
    assert [cancel.request_id for cancel in platform.worker.cancels] == [answer.headers["x-request-id"]]
    assert chunks[-1]["ridgeline"]["clocks"]["engine_total_ms"] == 3.5


async def test_logprobs_have_bytes_and_alternatives(platform: Any) -> None:
    tokens = platform.worker.say("hello").tokens[0]
    reply = await post(platform, chat(logprobs=True, top_logprobs=2))
    content = reply.json()["choices"][0]["logprobs"]["content"]
    # The end token begins where the text ends: it has no place in the list.
    assert len(content) == len(tokens) - 1
    assert b"".join(bytes(entry["bytes"]) for entry in content) == b"hello"
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(content)
    assert content[0]["logprob"] == -0.5
    streamed = await post(platform, chat(logprobs=True, top_logprobs=2, stream=True))
    chunks = events(streamed.text)[:-1]
    parts = [chunk["choices"][0]["logprobs"] or {"content": []} for chunk in chunks]
    assert [entry for part in parts for entry in part["content"]] == content


async def test_options_reach_the_worker(platform: Any) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": -1,
        "max_completion_tokens": 7,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"5": -100, "7": 3},
        "top_k": 4,
        "min_p": 0.1,
        "repetition_penalty": 1.25,
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
    }
    assert (await post(platform, chat(**options))).status_code == 200
    sampling = platform.worker.submits[0].sampling
    assert sampling == worker_pb2.Sampling(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.25,
        presence_penalty=1.5,
        frequency_penalty=-0.5,
        logit_bias={5: -100.0, 7: 3.0},
        seed=2**64 - 1,
        stop_token_ids=[9],
        ignore_eos=True,
    )


async def test_the_submission_tells_the_worker_whose_it_is(platform: Any) -> None:
    await platform.put_tenant(weight=2.5, trust_group="friends")
    await post(platform, chat())
    submit, route = platform.worker.submits[0], platform.router.routes[0]
    assert (submit.tenant, submit.weight, submit.attempt) == ("acme", 2.5, 0)
    assert submit.variant == platform.worker.files.variant == route.variant
    assert len(submit.cache_salt) == 16
    assert 0 < submit.remaining_ms <= 600_000
    assert route.prompt_tokens == len(submit.prompt[0].tokens.ids)
    assert len(route.block_hashes) == route.prompt_tokens // 16
    await platform.settled()
    assert submit.reservation_id == platform.router.releases[0].reservation_id


@pytest.mark.parametrize(
    ("messages", "rendered"),
    [
        pytest.param(
            [{"role": "developer", "content": "be kind"}], "system\nbe kind", id="developer-is-system"
        ),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
            "user\na\nb",
            id="text-parts-are-joined",
        ),
        pytest.param(
            [{"role": "assistant", "content": "x", "refusal": None, "tool_calls": None, "annotations": []}],
            "assistant\nx",
            id="an-assistants-reply-comes-back-as-it-was",
        ),
        pytest.param(
            [{"role": "assistant", "content": None, "refusal": "no"}], "assistant\nno", id="a-refusal"
        ),
    ],
)
async def test_messages_reach_the_template(platform: Any, messages: list[Any], rendered: str) -> None:
    assert (await post(platform, chat(messages=messages))).status_code == 200
    ids = list(platform.worker.submits[0].prompt[0].tokens.ids)
    text = platform.worker.files.tokenizer.decode(ids, skip_special_tokens=False)
    assert text == f"<|im_start|>{rendered}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    "field",
    [
        pytest.param({"user": "someone"}, id="user"),
        pytest.param({"store": False, "metadata": {"a": "b"}, "service_tier": "auto"}, id="bookkeeping"),
        pytest.param(
            {"response_format": {"type": "text"}, "modalities": ["text"]}, id="text-is-what-there-is"
        ),
        pytest.param({"tools": [], "tool_choice": "none", "reasoning_effort": None}, id="asking-for-nothing"),
        pytest.param({"prediction": {"type": "content", "content": "x"}}, id="only-the-speed"),
    ],
)
async def test_fields_that_do_not_change_the_output_are_ignored(platform: Any, field: dict[str, Any]) -> None:
    assert (await post(platform, chat(**field))).status_code == 200


@pytest.mark.parametrize(
    ("more", "param"),
    [
        pytest.param({"tools": [{"type": "function"}]}, "tools", id="tools"),
        pytest.param({"tool_choice": "required"}, "tool_choice", id="tool-choice"),
        pytest.param({"functions": [{}]}, "functions", id="functions"),
        pytest.param({"response_format": {"type": "json_object"}}, "response_format", id="json"),
        pytest.param({"modalities": ["audio"]}, "modalities", id="audio"),
        pytest.param({"reasoning_effort": "high"}, "reasoning_effort", id="effort"),
        pytest.param({"web_search_options": {}}, "web_search_options", id="search"),
        pytest.param({"frobnicate": 1}, "frobnicate", id="unknown-field"),
        pytest.param({"temperature": 2.5}, "temperature", id="temperature-range"),
        pytest.param({"temperature": "hot"}, "temperature", id="temperature-type"),
        pytest.param({"top_p": 0}, "top_p", id="top-p"),
        pytest.param({"max_tokens": 0}, "max_tokens", id="max-tokens"),
        pytest.param({"n": 0}, "n", id="no-choice"),
        pytest.param({"n": 5}, "n", id="more-choices-than-the-pool-can"),
        pytest.param({"stop": ["a"] * 17}, "stop", id="too-many-stops"),
        pytest.param({"stop": ""}, "stop", id="empty-stop"),
        pytest.param({"top_logprobs": 2}, "top_logprobs", id="top-logprobs-alone"),
        pytest.param({"logprobs": True, "top_logprobs": 21}, "top_logprobs", id="too-many-alternatives"),
        pytest.param({"logit_bias": {"x": 1}}, "logit_bias", id="bias-of-no-token"),
        pytest.param({"logit_bias": {"400": 1}}, "logit_bias", id="bias-outside-the-vocabulary"),
        pytest.param({"logit_bias": {"1": 101}}, "logit_bias", id="bias-too-large"),
        pytest.param(
            {"stream_options": {"include_usage": True}}, "stream_options", id="stream-options-alone"
        ),
        pytest.param({"min_tokens": 9, "max_tokens": 8}, "min_tokens", id="min-above-max"),
        pytest.param({"messages": []}, "messages", id="no-messages"),
        pytest.param({"messages": [{"role": "user"}]}, "messages[0].content", id="no-content"),
        pytest.param({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", id="tool-role"),
        pytest.param(
            {"messages": [{"role": "user", "content": 3}]}, "messages[0].content", id="content-type"
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type",
            id="an-image",
        ),
        pytest.param(
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            id="a-tool-call",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "x" * 9000}]}, "messages", id="longer-than-the-context"
        ),
        pytest.param({"max_tokens": 4096}, "messages", id="prompt-and-completion-longer-than-the-context"),
    ],
)
async def test_what_cannot_be_done_is_a_400_that_names_the_field(
    platform: Any, more: dict[str, Any], param: str
) -> None:
    reply = await post(platform, chat(**more))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert reply.headers["x-request-id"]
    assert not platform.worker.submits


@pytest.mark.parametrize(
    ("lacks", "more", "param"),
    [
        pytest.param("logprobs", {"logprobs": True}, "logprobs", id="logprobs"),
        pytest.param("penalties", {"presence_penalty": 1}, "presence_penalty", id="penalties"),
        pytest.param("seed", {"seed": 1}, "seed", id="seed"),
    ],
)
async def test_what_the_pool_lacks_is_a_400(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any, lacks: str, more: dict[str, Any], param: str
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, lacks=lacks) as platform:
        reply = await post(platform, chat(**more))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("limits", "more", "param"),
    [
        pytest.param({"max_context_tokens": 10}, {}, "messages", id="context"),
        pytest.param({"max_output_tokens": 5}, {"max_tokens": 6}, "max_tokens", id="output"),
    ],
)
async def test_a_tenants_own_limits_hold(platform: Any, limits: Any, more: Any, param: str) -> None:
    await platform.put_tenant(**limits)
    reply = await post(platform, chat(**more))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_tenants_output_limit_is_the_default(platform: Any) -> None:
    await platform.put_tenant(max_output_tokens=5)
    await post(platform, chat())
    assert platform.worker.submits[0].sampling.max_tokens == 5


@pytest.mark.parametrize("allowed", [None, ("other-model",)])
async def test_a_model_that_is_unknown_or_not_permitted_is_a_404(platform: Any, allowed: Any) -> None:
    await platform.put_tenant(models=allowed)
    name = "fake-model" if allowed else "no-such-model"
    reply = await post(platform, chat(model=name))
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


async def test_models_are_listed(platform: Any) -> None:
    listed = (await platform.client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["fake-model"]
    one = (await platform.client.get("/v1/models/fake-model")).json()
    assert one == listed["data"][0]
    await platform.put_tenant(models=("other-model",))
    assert (await platform.client.get("/v1/models")).json()["data"] == []
    assert (await platform.client.get("/v1/models/fake-model")).status_code == 404


def damage(folder: Path) -> None:
    next(folder.rglob("tokenizer.json")).write_bytes(b"{}")


async def test_tokenizer_files_are_fetched_once_and_kept_on_the_disk(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any
) -> None:
    for _ in range(2):
        async with gateway_over_fakes(model_files, tmp_path) as platform:
            await post(platform, chat())
            await post(platform, chat())
            requests = platform.worker.file_requests
    assert requests == 0
    await asyncio.to_thread(damage, tmp_path)
    async with gateway_over_fakes(model_files, tmp_path) as platform:
        assert (await post(platform, chat())).status_code == 200
        assert platform.worker.file_requests == 1
