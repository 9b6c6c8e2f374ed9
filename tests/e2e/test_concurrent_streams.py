"""Neighbours in a batch do not change a text (fp32)."""

import asyncio

import openai
import pytest
from ridgeline_testing.running import Platform

MODEL = "smollm2-135m-instruct"
STREAMS = 16
PROMPTS = [f"Write a short story about {number} ships and a lighthouse." for number in range(2, 2 + STREAMS)]


async def _stream(client: openai.AsyncOpenAI, prompt: str) -> str:
    chunks = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=64, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    return "".join([chunk.choices[0].text async for chunk in chunks if chunk.choices])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_sixteen_streams_at_once_each_equal_their_own_run_alone(platform: Platform) -> None:
    ready = platform.ready()
    async with openai.AsyncOpenAI(
        base_url=ready.base_url, api_key=ready.api_key, max_retries=0, timeout=300
    ) as client:
        together = await asyncio.gather(*(_stream(client, prompt) for prompt in PROMPTS))
        alone = [await _stream(client, prompt) for prompt in PROMPTS]
    assert list(together) == alone
    assert len(set(alone)) == STREAMS
