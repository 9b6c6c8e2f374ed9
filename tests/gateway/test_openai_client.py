"""The official client against the API behind a real HTTP server."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from ridgeline_gateway.quota.limits import MICRO, BucketLimits

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def client(platform: Any, served: str) -> AsyncIterator[openai.AsyncOpenAI]:
    made = openai.AsyncOpenAI(
        base_url=f"{served}/v1", api_key=platform.key, max_retries=0, _strict_response_validation=True
    )
    async with made:
        yield made


async def test_a_chat_streamed_and_not_gives_the_same(platform: Any, client: openai.AsyncOpenAI) -> None:
    platform.worker.say("hello world, 日本語 🎉", cached_tokens=1)
    whole = await client.chat.completions.create(
        model="fake-model", messages=MESSAGES, logprobs=True, top_logprobs=2
    )
    stream = await client.chat.completions.create(
        model="fake-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content == "hello world, 日本語 🎉"
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens == 1
    assert whole.choices[0].logprobs is not None
    assert whole._request_id == whole.to_dict()["ridgeline"]["request_id"]  # type: ignore[index]


async def test_completions_and_models(platform: Any, client: openai.AsyncOpenAI) -> None:
    platform.worker.say(" world")
    made = await client.completions.create(model="fake-model", prompt=["a", "b"], logprobs=1)
    assert [choice.text for choice in made.choices] == [" world", " world"]
    # Its own type of a streamed completion knows no null finish_reason, which OpenAI itself sends: not strict here.
    lenient = openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key)
    stream = await lenient.completions.create(model="fake-model", prompt="a", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == " world"
    await lenient.close()
    assert [model.id async for model in client.models.list()] == ["fake-model"]
    assert (await client.models.retrieve("fake-model")).owned_by == "ridgeline"


async def test_a_wrong_key_raises_the_clients_authentication_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="rl-" + "0" * 12 + "-" + "x" * 43).models.list()


async def test_a_bad_value_raises_the_clients_bad_request_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(model="fake-model", messages=MESSAGES, temperature=9)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")


async def test_an_unknown_model_raises_the_clients_not_found_error(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        await client.chat.completions.create(model="none", messages=MESSAGES)
    assert refused.value.code == "model_not_found"
    assert refused.value.request_id is not None


async def test_an_empty_bucket_raises_the_clients_rate_limit_error(
    platform: Any, client: openai.AsyncOpenAI
) -> None:
    await platform.put_tenant(quota=BucketLimits(rate_micro_per_s=1, burst_micro=100 * MICRO))
    platform.worker.answer([[40] * 60])
    await client.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=60)
    with pytest.raises(openai.RateLimitError) as refused:
        await client.chat.completions.create(model="fake-model", messages=MESSAGES, max_tokens=60)
    assert refused.value.response.headers["retry-after-ms"]


async def test_a_failure_in_the_middle_of_a_stream_raises_the_clients_error(
    platform: Any, client: openai.AsyncOpenAI
) -> None:
    platform.worker.answer([[40, 41, 42]], break_at=2)
    stream = await client.chat.completions.create(model="fake-model", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError, match="lost"):
        await anext(chunk async for chunk in stream if chunk.model == "never")
