"""Anthropic's messages API on the same core: replies, events, errors, counting, models."""

import asyncio
import json
from typing import Any

import httpx
import pytest

VERSION = {"anthropic-version": "2023-06-01"}


def body(**more: Any) -> dict[str, Any]:
    return {
        "model": "fake-model",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "hello"}],
        **more,
    }


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.split("\n", 1) for block in text.split("\n\n") if block]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in blocks]


@pytest.fixture
async def client(platform: Any) -> Any:
    """As Anthropic's clients send their key."""
    transport = httpx.ASGITransport(platform.gateway.app)
    headers = {"x-api-key": platform.key, **VERSION}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as made:
        yield made


async def test_a_whole_message_has_text_usage_and_a_reason(platform: Any, client: Any) -> None:
    tokens = platform.worker.say("hello world", cached_tokens=4).tokens[0]
    reply = await client.post("/v1/messages", json=body(system="Be kind."))
    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert found["content"] == [{"type": "text", "text": "hello world"}]
    assert (found["type"], found["role"], found["stop_reason"]) == ("message", "assistant", "end_turn")
    prompt = platform.worker.submits[0].prompt[0].tokens.ids
    assert found["usage"]["input_tokens"] + found["usage"]["cache_read_input_tokens"] == len(prompt)
    assert (found["usage"]["cache_read_input_tokens"], found["usage"]["output_tokens"]) == (4, len(tokens))
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    text = platform.worker.files.tokenizer.decode(list(prompt), skip_special_tokens=False)
    assert "system\nBe kind." in text


async def test_a_stream_is_made_of_the_events_that_clients_expect(platform: Any, client: Any) -> None:
    platform.worker.say("hello world")
    reply = await client.post("/v1/messages", json=body(stream=True))
    events = events_of(reply.text)
    kinds = [kind for kind, _ in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert all(data["type"] == kind for kind, data in events)
    assert (
        "".join(data["delta"]["text"] for kind, data in events if kind == "content_block_delta")
        == "hello world"
    )
    start, last = events[0][1]["message"], events[-2][1]
    assert start["usage"]["input_tokens"] == len(platform.worker.submits[0].prompt[0].tokens.ids)
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert last["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_sequence_is_named_and_a_cut_reply_says_so(
    platform: Any, client: Any, stream: bool
) -> None:
    async def ending(**more: Any) -> tuple[str, str | None, str]:
        reply = await client.post("/v1/messages", json=body(stream=stream, **more))
        if not stream:
            held = reply.json()
            return held["stop_reason"], held["stop_sequence"], held["content"][0]["text"]
        events = events_of(reply.text)
        text = "".join(data["delta"]["text"] for kind, data in events if kind == "content_block_delta")
        return (*events[-2][1]["delta"].values(), text)  # type: ignore[return-value]

    platform.worker.say("hello world")
    assert await ending(stop_sequences=["wor"]) == ("stop_sequence", "wor", "hello ")
    platform.worker.answer([[40, 41]])
    assert (await ending())[:2] == ("max_tokens", None)


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        pytest.param({"max_tokens": None}, 400, "invalid_request_error", id="no-max-tokens"),
        pytest.param({"messages": []}, 400, "invalid_request_error", id="no-messages"),
        pytest.param({"color": "red"}, 400, "invalid_request_error", id="unknown-field"),
        pytest.param({"tools": [{"name": "x"}]}, 400, "invalid_request_error", id="tools"),
        pytest.param({"thinking": {"type": "enabled"}}, 400, "invalid_request_error", id="thinking"),
        pytest.param({"model": "none"}, 404, "not_found_error", id="unknown-model"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            400,
            "invalid_request_error",
            id="image",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            400,
            "invalid_request_error",
            id="a-reply-begun-for-the-model",
        ),
    ],
)
async def test_errors_have_anthropics_shape(
    client: Any, change: dict[str, Any], status: int, kind: str
) -> None:
    reply = await client.post("/v1/messages", json=body(**change))
    held = reply.json()
    assert (reply.status_code, held["type"], held["error"]["type"]) == (status, "error", kind)
    assert held["request_id"] == reply.headers["request-id"]
    assert set(held["error"]) == {"type", "message"}


async def test_a_wrong_key_and_a_bug_have_that_shape_too(platform: Any, client: Any) -> None:
    wrong = await client.post("/v1/messages", json=body(), headers={"x-api-key": "sk-ant-x"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    platform.worker.answer([[40, 41]], first_offset=1)
    bug = await client.post("/v1/messages", json=body())
    assert (bug.status_code, bug.json()["error"]["type"]) == (500, "api_error")


async def test_a_failure_in_the_middle_is_an_error_event_and_no_end(platform: Any, client: Any) -> None:
    platform.worker.answer([[40, 41, 42]]).break_at = 2
    events = events_of((await client.post("/v1/messages", json=body(stream=True))).text)
    assert (events[-1][0], events[-1][1]["error"]["type"]) == ("error", "api_error")
    assert "message_stop" not in [kind for kind, _ in events]


async def test_tokens_are_counted_as_a_request_would_use_them_and_cost_nothing(
    platform: Any, client: Any
) -> None:
    asked = {name: value for name, value in body(system="Be kind.").items() if name != "max_tokens"}
    counted = await client.post("/v1/messages/count_tokens", json=asked)
    await client.post("/v1/messages", json=body(system="Be kind."))
    assert counted.json() == {"input_tokens": len(platform.worker.submits[0].prompt[0].tokens.ids)}
    await platform.settled()
    usage = (await platform.client.get("/v1/usage")).json()
    assert usage["total"]["requests"] == 1


async def test_models_are_listed_in_the_shape_that_the_version_header_asks_for(
    platform: Any, client: Any
) -> None:
    listed = (await client.get("/v1/models")).json()
    assert (listed["data"][0]["type"], listed["first_id"], listed["has_more"]) == (
        "model",
        "fake-model",
        False,
    )
    assert (await client.get("/v1/models/fake-model")).json()["display_name"] == "fake-model"
    assert (await client.get("/v1/models/none")).json()["type"] == "error"
    assert (await platform.client.get("/v1/models")).json()["object"] == "list"


async def test_parts_with_cache_marks_are_text(platform: Any, client: Any) -> None:
    part = {"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part]}]
    reply = await client.post("/v1/messages", json=body(messages=messages, system=[part]))
    assert reply.status_code == 200


async def test_a_silence_before_the_first_token_is_bridged(
    gateway_over_fakes: Any, model_files: Any, tmp_path: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing={"status_wait_ms": 60}) as platform:
        reply = platform.worker.say("hello")
        reply.pause_before[0] = asyncio.Event()
        asking = asyncio.create_task(platform.client.post("/v1/messages", json=body(stream=True)))
        await platform.worker.submitted.wait()
        await asyncio.sleep(0.2)
        reply.pause_before[0].set()
        text = (await asking).text
    assert text.startswith(": keep-alive\n\n")
    assert text.rstrip().endswith('data: {"type":"message_stop"}')
