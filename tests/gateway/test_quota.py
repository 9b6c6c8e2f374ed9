"""Quota over HTTP: headers, refusals, and that nothing stays reserved."""

import asyncio
from typing import Any

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import InvalidRequest, RateLimited
from ridgeline_contracts.ids import RequestId, TenantId
from ridgeline_gateway.bucket import MICRO, BucketLimits
from ridgeline_gateway.quota import InProcessQuota, Price
from ridgeline_gateway.tenants import Tenant


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
    standing = await platform.stores.quota.standing(platform.tenant)
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


async def test_tenants_have_buckets_of_their_own_and_new_limits_count_at_once() -> None:
    clock = VirtualClock()
    quota = InProcessQuota(clock)
    first = Tenant(TenantId("a"), "A", quota=limits(rate=1, burst=10))
    second = Tenant(TenantId("b"), "B", quota=limits(rate=1, burst=10))
    await quota.reserve(first, RequestId("1"), 10 * MICRO)
    await quota.reserve(second, RequestId("2"), 10 * MICRO)
    with pytest.raises(RateLimited) as refused:
        await quota.reserve(first, RequestId("3"), MICRO)
    assert refused.value.retry_after_ms == 1000
    clock.advance(1000)
    await quota.reserve(first, RequestId("3"), MICRO)
    smaller = Tenant(TenantId("b"), "B", quota=limits(rate=1, burst=5))
    with pytest.raises(InvalidRequest):
        await quota.reserve(smaller, RequestId("4"), 6 * MICRO)


async def test_a_tenant_that_becomes_limited_in_the_middle_settles_as_it_began() -> None:
    quota = InProcessQuota(VirtualClock())
    free = Tenant(TenantId("a"), "A")
    grant = await quota.reserve(free, RequestId("1"), 5 * MICRO)
    limited = Tenant(TenantId("a"), "A", quota=limits(rate=1, burst=10))
    other = await quota.reserve(limited, RequestId("2"), 5 * MICRO)
    assert (await quota.settle(grant, 2 * MICRO)).refunded_micro == 3 * MICRO
    assert (await quota.settle(other, 5 * MICRO)).standing.remaining_micro == 5 * MICRO


def test_a_price_counts_cached_tokens_apart() -> None:
    price = Price(prompt_micro=10, cached_micro=1, output_micro=40)
    assert price.of(prompt_tokens=5, cached_tokens=2, output_tokens=3) == 3 * 10 + 2 * 1 + 3 * 40
