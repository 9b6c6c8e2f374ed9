"""The ledger as tenants and operators read it, and that a bill can be redone from raw counts."""

import json
from typing import Any

import pytest
from ridgeline_contracts.ids import ModelName, RequestId
from ridgeline_gateway.ledger.record import LedgerEntry, LedgerRecord
from ridgeline_gateway.ledger.usage import audit_object, price_table, usage_lines, usage_object
from ridgeline_gateway.prices.price import Price, TokenRates
from ridgeline_gateway.quota.limits import MICRO, BucketLimits

PRICE = {
    "model": "fake-model",
    "weights": {"prompt": 1.0, "cached": 0.25, "output": 4.0},
    "usd_per_million": {"prompt": 0.5, "cached": 0.125, "output": 2.0},
    "derivation": "one resource token = 1 ms",
}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


async def usage(platform: Any, path: str = "/v1/usage") -> dict[str, Any]:
    await platform.settled()
    client = platform.admin if path.startswith("/admin") else platform.client
    reply = await client.get(path)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def test_usage_adds_up_under_each_price_version_and_the_bill_can_be_redone(platform: Any) -> None:
    await platform.put_tenant(quota=BucketLimits(1, 10_000 * MICRO))
    tokens = len(platform.worker.say("hello world", cached_tokens=4).tokens[0])
    await platform.client.post("/v1/chat/completions", json=chat())
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    frozen = await platform.admin.post("/admin/prices", json=PRICE)
    assert (frozen.status_code, frozen.json()["version"]) == (201, "v1")
    for _ in range(2):
        await platform.client.post("/v1/chat/completions", json=chat())
    found = await usage(platform)
    before, after = sorted(found["data"], key=lambda line: line["requests"])
    assert (before["price_version"], before["charged"], before["usd"]) == (
        "unit-1",
        prompt_tokens + tokens,
        None,
    )
    charged = 2 * (prompt_tokens - 4 + 1 + 4 * tokens)
    assert (after["price_version"], after["charged"]) == ("v1", charged)
    assert after["usd"] == pytest.approx(2 * ((prompt_tokens - 4) * 0.5 + 4 * 0.125 + tokens * 2.0) / 1e6)
    assert found["total"]["requests"] == 3
    audited = await usage(platform, "/admin/tenants/acme/usage")
    assert audited["audit"]["mismatched_requests"] == 0
    assert audited["audit"]["recomputed"] == audited["total"]["charged"]


@pytest.mark.parametrize(
    ("fail", "output", "platform_tokens"),
    [
        pytest.param({"error_code": "invalid_request"}, 0, 0, id="refused-by-the-worker"),
        pytest.param({"break_at": 0}, 0, 0, id="lost-before-a-token"),
        pytest.param({}, 5, 45, id="more-than-was-ordered"),
    ],
)
async def test_what_the_platform_caused_is_ledgered_and_not_charged(
    platform: Any, fail: dict[str, Any], output: int, platform_tokens: int
) -> None:
    platform.worker.answer([[40] * 50], **fail)
    await platform.client.post("/v1/chat/completions", json=chat(max_tokens=5))
    found = await usage(platform, "/admin/tenants/acme/usage")
    (line,) = found["data"]
    assert (line["requests"], line["output_tokens"]) == (1, output)
    assert found["audit"]["platform_tokens"] == platform_tokens
    assert found["audit"]["mismatched_requests"] == 0


async def test_a_retry_is_charged_once_and_its_lost_tokens_are_the_platforms(
    two_worker_platform: Any,
) -> None:
    platform = two_worker_platform
    first, second = platform.workers
    first.answer([[40] * 9]).break_at = 5
    tokens = second.say("hello world").tokens[0]
    await platform.client.post("/v1/chat/completions", json=chat())
    found = await usage(platform, "/admin/tenants/acme/usage")
    assert found["data"][0]["output_tokens"] == len(tokens)
    assert found["audit"]["platform_tokens"] >= 4


async def test_a_period_is_respected_and_a_wrong_one_named(platform: Any) -> None:
    await platform.client.post("/v1/chat/completions", json=chat(max_tokens=3))
    assert (await usage(platform, "/v1/usage?start_time=0&end_time=1000"))["data"] == []
    assert len((await usage(platform, "/v1/usage?start_time=0"))["data"]) == 1
    for query, param in (("start_time=soon", "start_time"), ("start_time=9&end_time=5", "start_time")):
        wrong = await platform.client.get(f"/v1/usage?{query}")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, param)
    assert (await platform.client.get("/v1/usage", headers={"authorization": "Bearer x"})).status_code == 401


async def test_a_tenants_page_shows_the_prices_that_hold_and_how_they_were_derived(platform: Any) -> None:
    await platform.admin.post("/admin/prices", json=PRICE)
    await platform.admin.post("/admin/prices", json=PRICE | {"weights": PRICE["weights"] | {"output": 5.0}})
    shown = (await platform.admin.get("/admin/tenants/acme")).json()["prices"]
    assert [(price["version"], price["weights"]["output"]) for price in shown] == [("v2", 5.0)]
    assert shown[0]["derivation"] == PRICE["derivation"]
    again = await platform.admin.post("/admin/prices", json=PRICE | {"version": "v1"})
    assert again.status_code == 409
    assert len((await platform.admin.get("/admin/prices")).json()["prices"]) == 2


@pytest.mark.parametrize(
    "change",
    [{"weights": {"prompt": 0.0, "cached": 0.0, "output": 1.0}}, {"version": "unit-1"}, {"model": ""}],
)
async def test_a_price_that_cannot_be_kept_is_a_400(platform: Any, change: dict[str, Any]) -> None:
    assert (await platform.admin.post("/admin/prices", json=PRICE | change)).status_code == 400


def record(charged: int, **changes: Any) -> LedgerRecord:
    held = {"prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 3, "price_version": "v1"} | changes
    entry = LedgerEntry(
        request_id=RequestId("r"),
        model=ModelName("m"),
        kv_micro=0,
        platform_tokens=0,
        attempts=1,
        outcome="ok",
        **held,
    )
    return LedgerRecord("1", "r", 0, False, 100, charged, 0, 0, ((0, 100),), entry)


def test_a_charge_that_counts_and_price_do_not_explain_is_found() -> None:
    prices = price_table([Price("v1", ModelName("m"), TokenRates(2, 1, 5))])
    right = 6 * 2 + 4 * 1 + 3 * 5
    lines = usage_lines([record(right), record(right + 1), record(1, price_version="lost")], prices)
    assert {line.price_version: line.mismatched_requests for line in lines} == {"v1": 1, "lost": 1}
    assert audit_object(lines)["mismatched_requests"] == 2
    assert json.dumps(usage_object(lines, start_s=0, end_s=1))


async def test_a_store_that_has_lost_its_prices_does_not_make_tokens_cheaper(platform: Any) -> None:
    await platform.admin.post("/admin/prices", json=PRICE)
    await platform.client.post("/v1/chat/completions", json=chat(max_tokens=3))

    async def none() -> list[Price]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(platform.stores.tenants, "prices", none)
        platform.gateway.prices.forget()
        reply = await platform.client.post("/v1/chat/completions", json=chat(max_tokens=3))
    assert reply.json()["ridgeline"]["quota"]["price_version"] == "v1"
