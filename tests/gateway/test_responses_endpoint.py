"""OpenAI's responses API on the same core, as its official client reads it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest


@pytest.fixture
async def official(platform: Any, served: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Strict: a field of a wrong type is an error."""
    client = openai.AsyncOpenAI(
        base_url=f"{served}/v1", api_key=platform.key, max_retries=0, _strict_response_validation=True
    )
    yield client
    await client.close()


async def test_the_official_client_gets_a_whole_response(platform: Any, official: openai.AsyncOpenAI) -> None:
    tokens = platform.worker.say("hello world", cached_tokens=4).tokens[0]
    found = await official.responses.create(model="fake-model", input="hello", instructions="Be kind.")
    assert (found.output_text, found.status) == ("hello world", "completed")
    assert found.usage is not None
    prompt = list(platform.worker.submits[0].prompt[0].tokens.ids)
    assert (found.usage.input_tokens, found.usage.output_tokens) == (len(prompt), len(tokens))
    assert found.usage.input_tokens_details.cached_tokens == 4
    assert "Be kind." in platform.worker.files.tokenizer.decode(prompt, skip_special_tokens=False)


async def test_the_official_client_reads_the_stream_to_its_end(
    platform: Any, official: openai.AsyncOpenAI
) -> None:
    platform.worker.say("hello world")
    text, kinds, numbers = "", [], []
    async with official.responses.stream(model="fake-model", input="hello") as stream:
        async for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = await stream.get_final_response()
    assert text == final.output_text == "hello world"
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert numbers == list(range(len(numbers)))


async def test_a_reply_that_was_cut_is_incomplete(platform: Any, official: openai.AsyncOpenAI) -> None:
    platform.worker.answer([[40, 41]])
    found = await official.responses.create(model="fake-model", input="hello", max_output_tokens=2)
    assert found.incomplete_details is not None
    assert (found.status, found.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_conversation_is_sent_whole_as_it_came_back(
    platform: Any, official: openai.AsyncOpenAI
) -> None:
    platform.worker.say("hello world")
    first = await official.responses.create(model="fake-model", input="hello")
    history: list[Any] = [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        first.output[0].model_dump(exclude_none=True),
        {"role": "user", "content": "again"},
    ]
    await official.responses.create(model="fake-model", input=history)
    prompt = list(platform.worker.submits[1].prompt[0].tokens.ids)
    text = platform.worker.files.tokenizer.decode(prompt, skip_special_tokens=False)
    assert "assistant\nhello world" in text
    assert text.index("hello world") < text.index("again")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        pytest.param({"previous_response_id": "resp_1"}, "previous_response_id", id="memory"),
        pytest.param({"tools": [{"type": "web_search"}]}, "tools", id="tools"),
        pytest.param({"text": {"format": {"type": "json_object"}}}, "text.format", id="format"),
        pytest.param({"background": True}, "background", id="background"),
        pytest.param({"color": "red"}, "color", id="unknown"),
        pytest.param({"input": []}, "input", id="nothing"),
        pytest.param({"input": [{"type": "function_call_output"}]}, "input[0].type", id="tool-output"),
    ],
)
async def test_what_would_change_the_output_is_a_400_that_names_it(
    platform: Any, change: dict[str, Any], param: str
) -> None:
    reply = await platform.client.post(
        "/v1/responses", json={"model": "fake-model", "input": "hello", **change}
    )
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_a_failure_in_the_middle_is_an_error_event_and_not_completed(platform: Any) -> None:
    platform.worker.answer([[40, 41, 42]]).break_at = 2
    body = {"model": "fake-model", "input": "hello", "stream": True}
    reply = await platform.client.post("/v1/responses", json=body)
    last = reply.text.rstrip().split("\n\n")[-1]
    assert last.startswith("event: error\n")
    assert json.loads(last.split("data: ")[1])["code"] == "worker_lost"
    assert "response.completed" not in reply.text
