"""Quota over HTTP: headers, refusals, and that nothing stays reserved."""

import asyncio
from typing import Any

import pytest
from ridgeline_contracts.ids import ModelName, RequestId, TenantId
from ridgeline_gateway.ledger.record import LedgerEntry
from ridgeline_gateway.prices.price import Price, TokenRates
from ridgeline_gateway.quota.estimate import OutputEstimator
from ridgeline_gateway.quota.hold import Hold, HoldPlan
from ridgeline_gateway.quota.limits import MICRO, Amounts, BucketLimits

ENTRY = LedgerEntry(RequestId("r"), ModelName("m"), "v", 0, 0, 0, 0, 0, 1, "ok").to_json()


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


async def test_a_reply_without_max_tokens_reserves_little_and_grows(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=10_000))
    reply = platform.worker.answer([[40] * 600])
    reply.pause_before[500] = asyncio.Event()
    asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat()))
    await platform.worker.submitted.wait()
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    assert platform.worker.submits[0].sampling.max_tokens == 2048
    async with asyncio.timeout(10):
        while await platform.reserved_micro() < (prompt_tokens + 500) * MICRO:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await platform.reserved_micro() < (prompt_tokens + 1000) * MICRO
    reply.pause_before[500].set()
    body = (await asking).json()
    assert body["ridgeline"]["quota"]["charged"] == prompt_tokens + 600
    assert await platform.reserved_micro() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_reply_that_outgrows_bucket_and_debt_cap_ends_with_an_error_and_is_charged(
    platform: Any, stream: bool
) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=400), debt_cap_micro=50 * MICRO)
    platform.worker.answer([[40] * 2000])
    # The default is bounded by the bucket; what another request takes meanwhile is not there to top up from.
    other = await platform.gateway.quota.reserve(platform.tenant, "other", Amounts(100 * MICRO))
    reply = await platform.client.post("/v1/chat/completions", json=chat(stream=stream))
    await platform.settled()
    if stream:
        assert reply.status_code == 200
        assert "rate_limit_exceeded" in reply.text
        assert "[DONE]" not in reply.text
    else:
        assert reply.status_code == 429
    standing = await platform.standing()
    assert standing.reserved_micro == 100 * MICRO
    if stream:
        assert standing.remaining_micro is not None
        assert -50 * MICRO <= standing.remaining_micro < 50 * MICRO
    await platform.gateway.quota.settle(other, Amounts(), ENTRY)


async def test_so_many_requests_at_once_are_said_in_headers_and_the_next_is_a_429(platform: Any) -> None:
    await platform.put_tenant(max_concurrent_requests=1)
    reply = platform.worker.answer([[40, 41]])
    reply.pause_before[0] = asyncio.Event()
    asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat()))
    await platform.worker.submitted.wait()
    refused = await platform.client.post("/v1/chat/completions", json=chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    reply.pause_before[0].set()
    answered = await asking
    assert answered.headers["x-ratelimit-limit-requests"] == "1"
    assert answered.headers["x-ratelimit-remaining-requests"] == "1"
    assert answered.headers["x-ratelimit-requests-unit"] == "at-once"


async def test_kv_seconds_are_reserved_charged_and_owed(platform: Any) -> None:
    await platform.put_tenant(kv_quota=BucketLimits(rate_micro_per_s=1, burst_micro=50_000))
    platform.worker.answer([[40] * 10])
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=10))
    assert reply.status_code == 200
    # The fake engine says that it held the prompt and half of the output for 3.5 - 1.5 ms.
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    standing = await platform.standing()
    assert standing.kv_remaining_micro == 50_000 - (prompt_tokens + 5) * 2000 + 0
    assert reply.headers["x-ratelimit-limit-kv-token-seconds"] == "0"


async def test_a_frozen_price_weighs_tokens_and_is_named_in_the_receipt(platform: Any) -> None:
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    weights = TokenRates(2 * MICRO, MICRO // 2, 3 * MICRO)
    await platform.stores.tenants.freeze_price(Price("v1", ModelName("fake-model"), weights))
    platform.gateway.prices.forget()
    tokens = platform.worker.say("hello world", cached_tokens=4).tokens[0]
    reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=20))
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    quota = reply.json()["ridgeline"]["quota"]
    assert quota["reserved"] == 2 * prompt_tokens + 3 * 20
    assert quota["charged"] == 2 * (prompt_tokens - 4) + 2 + 3 * len(tokens)
    assert (quota["price_version"], quota["cached_tokens"]) == ("v1", 4)


def test_an_estimate_learns_a_tenants_lengths_and_forgets_nobody_elses() -> None:
    estimator, model = OutputEstimator(), ModelName("m")
    first, second = TenantId("a"), TenantId("b")
    assert estimator.tokens(first, model, most=2048) == 256
    assert estimator.tokens(first, model, most=100) == 100
    for length in range(1, 101):
        estimator.learn(first, model, length)
    assert estimator.tokens(first, model, most=2048) == 90
    assert estimator.tokens(second, model, most=2048) == 256


@pytest.mark.parametrize("free", [True, False], ids=["the-bucket-holds-it", "it-does-not"])
async def test_after_a_cancel_what_the_terminal_row_reports_is_charged_as_far_as_the_bucket_holds_it(
    platform: Any, free: bool
) -> None:
    """The worker had made 24 tokens more than was reserved for delivery when it heard of the cancel."""
    await platform.put_tenant(quota=limits(rate=1, burst=1000))
    desk = platform.gateway.quota
    price = Price("v", ModelName("m"), TokenRates(MICRO, MICRO, MICRO))
    plan = HoldPlan(price, prompt_tokens=40, reserved_output_tokens=256, most_output_tokens=2048, kv_micro=0)
    hold = Hold(desk, await desk.reserve(platform.tenant, "one", plan.wanted), plan)
    other = await desk.reserve(platform.tenant, "other", Amounts((600 if free else 700) * MICRO))
    entry = LedgerEntry(RequestId("one"), ModelName("m"), "v", 40, 0, 280, 0, 0, 1, "cancelled")
    receipt = await hold.settle(entry)
    assert receipt.charged_micro == (320 if free else 296) * MICRO
    await desk.settle(other, Amounts(), ENTRY)
    records = await platform.stores.accounts.records(
        platform.tenant.tenant_id, since_ms=0, until_ms=2**52, after=None, most=9
    )
    found = records[0].entry
    assert (found.output_tokens, found.platform_tokens) == ((280, 0) if free else (256, 24))
