"""Quota over HTTP: headers, refusals, and that nothing stays reserved."""

import asyncio
from typing import Any

import pytest
from ridgeline_gateway.quota.limits import MICRO, BucketLimits


def limits(*, rate: int, burst: int) -> BucketLimits:
    return BucketLimits(rate_micro_per_s=rate * MICRO, burst_micro=burst * MICRO)


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


async def test_headers_tell_what_is_left_and_in_which_unit(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    tokens = platform.worker.say("hello world").tokens[0]
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=100))
    used = len(platform.worker.submits[0].prompt[0].tokens.ids) + len(tokens)
    assert reply.headers["x-ratelimit-limit-tokens"] == "1000"
    assert abs(int(reply.headers["x-ratelimit-remaining-tokens"]) - (1000 - used)) <= 1
    assert reply.headers["x-ratelimit-reset-tokens"].endswith("ms")
    assert reply.headers["x-ratelimit-unit"] == "resource-tokens"
    quota = reply.json()["ridgeline"]["quota"]
    assert quota["reserved"] == len(platform.worker.submits[0].prompt[0].tokens.ids) + 100
    assert quota["charged"] + quota["refunded"] == quota["reserved"]


async def test_a_streams_headers_tell_what_is_left_while_it_runs(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=100, stream=True))
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) in (900 - prompt_tokens, 899 - prompt_tokens)


async def test_a_request_that_does_not_fit_now_is_told_when_it_will(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=100, burst=1000))
    reply_tokens = platform.worker.answer([[40] * 900])
    reply_tokens.pause_before[1] = asyncio.Event()
    asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat(max_tokens=900)))
    await platform.worker.submitted.wait()
    refused = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=500))
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
    wait_ms = int(refused.headers["retry-after-ms"])
    assert 1000 < wait_ms < 6000
    assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
    reply_tokens.pause_before[1].set()
    assert (await asking).status_code == 200


async def test_a_request_that_can_never_fit_is_a_400(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=100, burst=1000))
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=1000))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")


async def test_a_default_never_asks_for_more_than_the_bucket_can_hold(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=100, burst=100))
    reply = await platform.client.post("/v1/chat/completions", json=chat(n=2))
    assert reply.status_code == 200
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    assert platform.worker.submits[0].sampling.max_tokens == (100 - prompt_tokens) // 2


@pytest.mark.parametrize(
    "fail",
    [
        pytest.param({"error_code": "invalid_request"}, id="refused-by-the-worker"),
        pytest.param({"break_at": 0}, id="worker-lost-twice"),
        pytest.param({"first_offset": 3}, id="wrong-rows"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_nothing_stays_reserved_after_a_failure(
    platform: Any, fail: dict[str, Any], stream: bool
) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    platform.worker.answer([[40, 41]], **fail)
    reply = await platform.client.post("/v1/chat/completions", json=chat(stream=stream, max_tokens=100))
    assert reply.status_code >= 400
    await platform.settled()
    standing = await platform.standing()
    assert standing.reserved_micro == 0
    assert standing.remaining_micro == standing.limit_micro


async def test_what_a_worker_makes_beyond_the_order_is_not_charged_and_leaves_nothing_reserved(
    platform: Any,
) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    platform.worker.answer([[40] * 50])
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=5))
    quota = reply.json()["ridgeline"]["quota"]
    assert (quota["charged"], quota["refunded"]) == (quota["reserved"], 0)
    await platform.settled()
    assert await platform.reserved_micro() == 0
