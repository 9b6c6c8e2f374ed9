"""Greedy fp32 text equals transformers', token by token, whatever the batch, the chunking and the cache do.

The oracle reads the same weights (the converted folder, widened to fp32) with transformers. Prompts have lengths
around the block size (16) and around powers of two that chunk budgets fall on, and one is several thousand tokens.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import openai
import pytest
import tokenizers
from ridgeline_testing.oracle import greedy_texts
from ridgeline_testing.running import Platform, ReadyFile
from ridgeline_testing.smollm2 import smollm2_folder

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
MODEL = "smollm2-135m-instruct"
OUTPUT_TOKENS = 64
LENGTHS = [1, 7, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513, 3001]
_STORY = (
    "In the harbour town of Vell the lamps were lit an hour before dusk, for the fog came early and stayed late. "
    "Mara kept the ledger of ships: {n} barges of salt, {n} of timber, and one that nobody had expected. "
)


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    cached_tokens: int


def _prompts(encode: Callable[[str], list[int]]) -> list[list[int]]:
    long_text = "".join(_STORY.format(n=number) for number in range(2, 90))
    ids = encode(long_text)
    assert len(ids) > max(LENGTHS) + len(LENGTHS)
    # Each starts elsewhere, so that no prompt is another's cached prefix.
    return [ids[start : start + length] for start, length in enumerate(LENGTHS)]


async def _ask(client: openai.AsyncOpenAI, prompt: list[int]) -> Answer:
    made = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=OUTPUT_TOKENS, temperature=0
    )
    assert made.usage is not None
    details = made.usage.prompt_tokens_details
    return Answer(made.choices[0].text, (details.cached_tokens or 0) if details else 0)


def _client(ready: ReadyFile, api_key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=ready.base_url, api_key=api_key, max_retries=0, timeout=900)


def _second_tenants_key(ready: ReadyFile) -> str:
    with httpx.Client(
        base_url=ready.admin_url, headers={"Authorization": f"Bearer {ready.admin_key}"}, timeout=30
    ) as admin:
        admin.put("/admin/tenants/golden", json={"name": "golden"}).raise_for_status()
        made = admin.post("/admin/tenants/golden/keys").raise_for_status().json()
    return str(made["key"])


async def test_greedy_fp32_equals_transformers_alone_batched_and_from_the_cache(platform: Platform) -> None:
    folder = smollm2_folder()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = _prompts(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    expected = greedy_texts(folder, prompts, output_tokens=OUTPUT_TOKENS)
    ready = platform.ready()
    async with _client(ready, ready.api_key) as client:
        batched = await asyncio.gather(*(_ask(client, prompt) for prompt in prompts))
        assert [answer.text for answer in batched] == expected
        assert [answer.cached_tokens for answer in batched] == [0] * len(prompts)
        again = await asyncio.gather(*(_ask(client, prompt) for prompt in prompts))
        assert [answer.text for answer in again] == expected
        # Whole blocks of 16, and never the last token.
        assert [answer.cached_tokens for answer in again] == [(length - 1) // 16 * 16 for length in LENGTHS]
    # Another tenant has another salt: nothing of the first one's is a hit, so the first round alone computes all.
    async with _client(ready, _second_tenants_key(ready)) as other:
        alone = [await _ask(other, prompt) for prompt in prompts]
        assert [answer.text for answer in alone] == expected
        assert [answer.cached_tokens for answer in alone] == [0] * len(prompts)
        alone_again = [await _ask(other, prompt) for prompt in prompts]
        assert [answer.text for answer in alone_again] == expected
        assert [answer.cached_tokens for answer in alone_again] == [answer.cached_tokens for answer in again]
