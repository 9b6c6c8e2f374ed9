"""Requests that would come too late are refused at once, and told when to come again."""

import asyncio
from typing import Any

import pytest
from ridgeline_contracts.proto import router_pb2
from ridgeline_gateway.deadlines import too_late
from ridgeline_gateway.tenants import TenantClass


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


def estimates(*, queue_ms: float, prefill_ms: float) -> router_pb2.Estimates:
    return router_pb2.Estimates(queue_ms=queue_ms, prefill_ms=prefill_ms, ttft_ms=queue_ms + prefill_ms)


@pytest.mark.parametrize(
    ("queue_ms", "prefill_ms", "waited_ms", "least", "most"),
    [
        pytest.param(700, 200, 100, None, None, id="just-in-time"),
        pytest.param(700, 200, 101, 250, 312, id="a-little-late-comes-back-no-sooner-than-that"),
        pytest.param(5000, 200, 0, 4200, 5250, id="until-the-queue-has-drained-to-the-target"),
        # The prompt alone takes longer than the target: an empty queue is the best that can be waited for.
        pytest.param(400, 3000, 0, 400, 500, id="no-longer-than-the-queue-lasts"),
    ],
)
def test_retry_after_is_the_queues_drain_time_and_up_to_a_quarter(
    queue_ms: float, prefill_ms: float, waited_ms: float, least: int | None, most: int | None
) -> None:
    drawn = [
        too_late(
            estimates(queue_ms=queue_ms, prefill_ms=prefill_ms),
            waited_ms=waited_ms,
            target_ms=1000,
            random_bytes=lambda count, draw=draw: draw * count,  # type: ignore[misc]
        )
        for draw in (b"\x00", b"\xff")
    ]
    assert [None if refused is None else refused.retry_after_ms for refused in drawn] == [least, most]


async def test_a_request_that_would_miss_the_target_is_a_503_and_costs_nothing(
    gateway_over_fakes: Any, model_files: Any, tmp_path: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing={"ttft_target_ms": 1000}) as platform:
        platform.router.estimates = estimates(queue_ms=3000, prefill_ms=10)
        refused = await platform.client.post("/v1/chat/completions", json=chat())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert 2010 <= int(refused.headers["retry-after-ms"]) <= 2600
        assert "x-should-retry" not in refused.headers
        await platform.settled()
        assert platform.worker.submits == []
        assert [release.outcome for release in platform.router.releases] == [router_pb2.OUTCOME_CANCELLED]
        assert await platform.reserved_micro() == 0
        platform.router.estimates = estimates(queue_ms=3_000_000, prefill_ms=10)
        hopeless = await platform.client.post("/v1/chat/completions", json=chat())
        assert hopeless.headers["x-should-retry"] == "false"
        # Batch work waits.
        await platform.put_tenant(tenant_class=TenantClass.BATCH)
        assert (await platform.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_without_a_target_everybody_waits(platform: Any) -> None:
    platform.router.estimates = estimates(queue_ms=3_000_000, prefill_ms=10)
    assert (await platform.client.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_a_request_whose_deadline_passed_while_it_waited_is_not_submitted(platform: Any) -> None:
    platform.router.hold = asyncio.Event()
    headers = {"x-ridgeline-deadline-ms": "50"}
    asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat(), headers=headers))
    await platform.router.routed.wait()
    await asyncio.sleep(0.06)
    platform.router.hold.set()
    reply = await asking
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")
    await platform.settled()
    assert platform.worker.submits == []


async def test_a_clients_deadline_travels_as_the_time_that_remains(platform: Any) -> None:
    headers = {"x-ridgeline-deadline-ms": "5000"}
    await platform.client.post("/v1/chat/completions", json=chat(), headers=headers)
    assert 4000 < platform.worker.submits[0].remaining_ms <= 5000
    await platform.client.post("/v1/chat/completions", json=chat())
    assert platform.worker.submits[1].remaining_ms > 100_000
    wrong = await platform.client.post(
        "/v1/chat/completions", json=chat(), headers={"x-ridgeline-deadline-ms": "soon"}
    )
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "x-ridgeline-deadline-ms")
