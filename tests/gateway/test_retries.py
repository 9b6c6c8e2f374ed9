"""Workers that are lost, refuse, or send what cannot be right."""

import asyncio
from typing import Any

import pytest
from ridgeline_contracts.proto import router_pb2
from ridgeline_gateway.quota.limits import MICRO, BucketLimits


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


async def post(platform: Any, **more: Any) -> Any:
    return await platform.client.post("/v1/chat/completions", json=chat(**more))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_lost_before_the_first_token_is_made_good_by_another(
    two_worker_platform: Any, stream: bool
) -> None:
    platform = two_worker_platform
    first, second = platform.workers
    first.answer([[40]]).break_at = 0
    second.say("hello world")
    reply = await post(platform, stream=stream)
    assert reply.status_code == 200
    assert "hello" in reply.text
    assert [submit.attempt for submit in (*first.submits, *second.submits)] == [0, 1]
    assert [list(route.pins.excluded_worker_ids) for route in platform.router.routes] == [[], ["worker-0"]]
    await platform.settled()
    outcomes = [release.outcome for release in platform.router.releases]
    assert outcomes == [router_pb2.OUTCOME_WORKER_LOST, router_pb2.OUTCOME_FINISHED]


async def test_a_whole_reply_is_made_good_even_after_tokens_and_charged_once(
    two_worker_platform: Any,
) -> None:
    platform = two_worker_platform
    await platform.put_tenant(quota=BucketLimits(rate_micro_per_s=1, burst_micro=10_000 * MICRO))
    first, second = platform.workers
    first.answer([[40] * 9]).break_at = 5
    tokens = second.say("hello world").tokens[0]
    body = (await post(platform)).json()
    assert body["choices"][0]["message"]["content"] == "hello world"
    assert body["ridgeline"]["attempts"] == 2
    prompt_tokens = len(second.submits[0].prompt[0].tokens.ids)
    assert body["ridgeline"]["quota"]["charged"] == prompt_tokens + len(tokens)


async def test_the_only_worker_is_waited_for_and_not_excluded(platform: Any) -> None:
    platform.worker.answer([[40]]).break_at = 0
    asking = asyncio.create_task(post(platform))
    await platform.worker.submitted.wait()
    await platform.worker.stop()
    platform.router.tell(platform.worker.info(router_pb2.WORKER_STATE_LOST))
    platform.worker.say("hello again")
    await asyncio.sleep(0.1)
    await platform.worker.start()
    platform.worker.incarnation = "life-2"
    platform.router.tell(platform.worker.info())
    reply = await asking
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"][0]["message"]["content"] == "hello again"
    assert all(not route.pins.excluded_worker_ids for route in platform.router.routes)


async def test_two_losses_are_the_clients_error_and_cost_nothing(two_worker_platform: Any) -> None:
    platform = two_worker_platform
    await platform.put_tenant(quota=BucketLimits(rate_micro_per_s=1, burst_micro=10_000 * MICRO))
    for worker in platform.workers:
        worker.answer([[40]]).break_at = 0
    reply = await post(platform)
    assert reply.status_code == 502
    assert reply.json()["error"]["code"] == "worker_lost"
    assert reply.headers["retry-after"] == "1"
    await platform.settled()
    standing = await platform.standing()
    assert (standing.reserved_micro, standing.remaining_micro) == (0, standing.limit_micro)


async def test_an_engine_that_is_starting_again_is_waited_for(platform: Any) -> None:
    answers = iter(["worker_lost", "unavailable", "unavailable", ""])

    def reply_for(submit: Any) -> Any:
        code = next(answers)
        tokens = platform.worker.files.tokenizer.encode("hello").ids
        return platform.worker.made([[*tokens]], error_code=code)

    platform.worker.reply_for = reply_for
    reply = await post(platform)
    assert reply.status_code == 200, reply.text
    assert [submit.attempt for submit in platform.worker.submits] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("invalid_request", 400, id="the-callers"),
        pytest.param("conflict", 503, id="another-variant"),
        pytest.param("overloaded", 503, id="busy-twice"),
        pytest.param("a_code_of_the_future", 500, id="unknown"),
    ],
)
async def test_what_a_worker_refuses_with_reaches_the_client(platform: Any, code: str, status: int) -> None:
    platform.worker.answer([[40]], error_code=code)
    reply = await post(platform)
    assert reply.status_code == status
    assert "fake worker was told" not in reply.text or status != 500


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("unavailable", 503, id="no-worker"),
        pytest.param("overloaded", 503, id="overloaded"),
        pytest.param("not_found", 404, id="no-such-variant"),
    ],
)
async def test_what_the_router_refuses_with_reaches_the_client_at_once(
    platform: Any, code: str, status: int
) -> None:
    platform.router.refusal = router_pb2.Refusal(code=code, message="told so", retry_after_ms=2500)
    reply = await post(platform)
    assert reply.status_code == status
    assert reply.headers["retry-after"] == "3"
    assert reply.headers["retry-after-ms"] == "2500"
    assert len(platform.router.routes) == 1


async def test_a_router_that_is_gone_is_a_503(platform: Any) -> None:
    await platform.router.stop()
    reply = await post(platform)
    assert reply.status_code == 503
    assert "router" in reply.json()["error"]["message"]


async def test_lost_rows_fail_the_request_instead_of_showing_wrong_text(platform: Any) -> None:
    platform.worker.answer([[40, 41]], first_offset=1)
    reply = await post(platform)
    assert reply.status_code == 500
    assert reply.json()["error"]["message"].startswith("an internal error; quote request req-")
    assert len(platform.worker.submits) == 1
    await platform.settled()
    assert platform.gateway.links.open_requests() == 0


async def test_a_gap_in_the_frames_ends_the_session_and_the_request_is_tried_again(platform: Any) -> None:
    platform.worker.skip_sequence = True
    platform.worker.say("hello")
    reply = await post(platform)
    assert reply.status_code == 200
    assert [submit.attempt for submit in platform.worker.submits] == [0, 1]


async def test_a_new_engine_behind_the_same_front_counts_frames_anew(platform: Any) -> None:
    platform.worker.say("hello")
    assert (await post(platform)).status_code == 200
    await platform.worker.greet_again()
    assert (await post(platform)).status_code == 200


async def test_a_worker_of_another_contract_is_not_used(platform: Any) -> None:
    platform.worker.contract_version = 999
    platform.worker.die()
    await platform.gateway.links.change()
    reply = await post(platform)
    assert reply.status_code == 503
    assert platform.gateway.health().problem == "no session with a worker"


async def test_a_worker_that_leaves_the_set_is_let_go(platform: Any) -> None:
    platform.router.tell()
    await platform.gateway.links.change()
    assert platform.gateway.links.connected_workers == 0
    # Its model is still known: it may come back.
    assert (await post(platform)).status_code == 503
