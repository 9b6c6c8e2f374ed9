"""POST /v1/chat/completions against workers that speak the contract."""

import json
from typing import Any


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


def events(text: str) -> list[Any]:
    """The data of each event; the comment lines are left out."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


async def test_a_whole_reply_has_text_usage_and_clocks(platform: Any, model_files: Any) -> None:
    tokens = model_files.tokenizer.encode("hello world").ids
    platform.worker.say("hello world")
    reply = await platform.client.post("/v1/chat/completions", json=chat())
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body["choices"][0]["message"]["content"] == "hello world"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(tokens) + 1
    assert body["ridgeline"]["clocks"]["engine_ttft_ms"] == 2.5


async def test_a_stream_gives_the_same_text_piece_by_piece(platform: Any, model_files: Any) -> None:
    tokens = model_files.tokenizer.encode("hello world").ids
    platform.worker.say("hello world")
    reply = await platform.client.post("/v1/chat/completions", json=chat(stream=True))
    assert reply.status_code == 200, reply.text
    found = events(reply.text)
    assert found[-1] == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found[:-1])
    assert text == "hello world"
    assert found[-2]["choices"][0]["finish_reason"] == "stop"
