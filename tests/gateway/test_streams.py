"""What happens on the connection: silence, failures in the middle, clients that go away."""

import asyncio
import contextlib
import json
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from ridgeline_contracts.proto import router_pb2
from ridgeline_gateway.connection import (
    SEND_BUFFER_BYTES,
    USER_TIMEOUT_MS,
    WRITE_BUFFER_BYTES,
    BoundedConnection,
)
from ridgeline_gateway.quota.limits import MICRO, BucketLimits

QUOTA = BucketLimits(rate_micro_per_s=1, burst_micro=10_000 * MICRO)
SHORT_WAIT = {"status_wait_ms": 60}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}], **more}


async def charged_and_free(platform: Any) -> int:
    """Micro-tokens charged so far, once nothing is reserved any more."""
    await platform.settled()
    standing = await platform.standing()
    assert standing.reserved_micro == 0
    assert platform.gateway.links.open_requests() == 0
    assert len(platform.router.releases) == len(platform.router.routes)
    return int(standing.limit_micro - standing.remaining_micro)


@pytest.fixture
def headers(platform: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {platform.key}"}


async def test_a_failure_after_the_first_token_is_an_error_event_and_no_done(platform: Any) -> None:
    reply = platform.worker.answer([[40, 41, 42]])
    reply.break_at = 2
    answer = await platform.client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.status_code == 200
    blocks = [block.removeprefix("data: ") for block in answer.text.split("\n\n") if block]
    error = json.loads(blocks[-1])["error"]
    assert (error["code"], error["type"]) == ("worker_lost", "server_error")
    assert "[DONE]" not in answer.text
    assert '"finish_reason":"' not in answer.text


async def test_a_failure_before_the_first_token_has_its_own_status(platform: Any) -> None:
    platform.worker.answer([[40]], error_code="out_of_memory")
    answer = await platform.client.post("/v1/chat/completions", json=chat(stream=True))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "out_of_memory"
    await platform.settled()
    assert platform.router.releases[-1].outcome == router_pb2.OUTCOME_FAILED


async def test_a_silent_worker_is_bridged_by_comments(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing=SHORT_WAIT) as platform:
        reply = platform.worker.say("hello world")
        reply.pause_before = {0: asyncio.Event(), 1: asyncio.Event()}
        asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat(stream=True)))
        await platform.worker.submitted.wait()
        await asyncio.sleep(0.2)
        reply.pause_before[0].set()
        await asyncio.sleep(0.2)
        reply.pause_before[1].set()
        answer = await asking
    blocks = answer.text.split("\n\n")
    assert blocks[0] == ": keep-alive"
    first = next(index for index, block in enumerate(blocks) if block.startswith("data: "))
    assert ": keep-alive" in blocks[first:]
    assert blocks[-2] == "data: [DONE]"


async def test_a_failure_after_the_status_was_sent_early_is_an_error_event(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing=SHORT_WAIT) as platform:
        reply = platform.worker.answer([[40]], error_code="out_of_memory")
        reply.pause_before[0] = asyncio.Event()
        asking = asyncio.create_task(platform.client.post("/v1/chat/completions", json=chat(stream=True)))
        await platform.worker.submitted.wait()
        await asyncio.sleep(0.2)
        reply.pause_before[0].set()
        answer = await asking
        # The status is out, but no text: the refusal is still made good by a second try, then it is final.
        assert [submit.attempt for submit in platform.worker.submits] == [0, 1]
    assert answer.status_code == 200
    assert (
        json.loads(answer.text.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "out_of_memory"
    )


@pytest.mark.parametrize("tokens_first", [0, 2], ids=["before-the-first-token", "in-the-middle"])
async def test_a_client_that_leaves_a_stream_cancels_its_request(
    platform: Any, served: str, headers: Any, tokens_first: int
) -> None:
    await platform.put_tenant(quota=QUOTA)
    reply = platform.worker.answer([[40] * 500])
    reply.pause_before[tokens_first] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served, headers=headers) as client:
        if tokens_first:
            async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer:
                async for line in answer.aiter_lines():
                    if '"content":"' in line and '"content":""' not in line:
                        break
        else:
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
            await platform.worker.submitted.wait()
            asking.cancel()
    await asyncio.wait_for(platform.worker.cancelled.wait(), 5)
    charged = await charged_and_free(platform)
    prompt_tokens = len(platform.worker.submits[0].prompt[0].tokens.ids)
    # After a cancel the worker's last row says what was used.
    assert charged == (prompt_tokens + tokens_first) * MICRO
    assert platform.router.releases[0].outcome == router_pb2.OUTCOME_CANCELLED


async def test_a_client_that_leaves_while_it_waits_for_a_whole_reply_cancels_its_request(
    platform: Any, served: str, headers: Any
) -> None:
    await platform.put_tenant(quota=QUOTA)
    reply = platform.worker.answer([[40] * 500])
    reply.pause_before[3] = asyncio.Event()
    async with httpx.AsyncClient(base_url=served, headers=headers) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await platform.worker.submitted.wait()
        asking.cancel()
    await asyncio.wait_for(platform.worker.cancelled.wait(), 5)
    await charged_and_free(platform)


async def test_a_client_that_leaves_while_the_router_thinks_leaves_no_reservation(
    platform: Any, served: str, headers: Any
) -> None:
    await platform.put_tenant(quota=QUOTA)
    platform.router.hold = asyncio.Event()
    async with httpx.AsyncClient(base_url=served, headers=headers) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await platform.router.routed.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await platform.nothing_reserved()
    platform.router.hold.set()
    assert await charged_and_free(platform) == 0
    assert not platform.worker.submits


async def test_a_worker_that_never_sends_terminal_rows_does_not_keep_the_quota(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing={"settle_wait_ms": 100}) as platform:
        await platform.put_tenant(quota=QUOTA)
        reply = platform.worker.say("hello world", step_tokens=2)
        reply.pause_before[1] = asyncio.Event()
        platform.worker.ignores_cancel = True
        answer = await platform.client.post("/v1/chat/completions", json=chat(stop="h"))
        assert answer.json()["choices"][0]["message"]["content"] == ""
        await platform.settled()
        assert await platform.reserved_micro() == 0


async def test_a_client_that_leaves_during_the_settlement_does_not_end_it(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any, serve: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing={"settle_wait_ms": 300}) as platform:
        await platform.put_tenant(quota=QUOTA)
        platform.worker.say("hello world", step_tokens=2).pause_before[1] = asyncio.Event()
        platform.worker.ignores_cancel = True
        headers = {"authorization": f"Bearer {platform.key}"}
        async with (
            serve(platform.gateway.app) as url,
            httpx.AsyncClient(base_url=url, headers=headers) as client,
        ):
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stop="h")))
            # The stop string is complete, the worker was told, its terminal row does not come.
            await platform.worker.cancelled.wait()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert await charged_and_free(platform) > 0


async def test_a_request_past_its_deadline_is_a_504(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any
) -> None:
    async with gateway_over_fakes(model_files, tmp_path, timing={"request_deadline_ms": 100}) as platform:
        reply = platform.worker.answer([[40]])
        reply.pause_before[0] = asyncio.Event()
        answer = await platform.client.post("/v1/chat/completions", json=chat())
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_exceeded"


async def test_a_slow_reader_slows_only_itself(platform: Any, served: str, headers: Any) -> None:
    """One client never reads its long reply; another is served meanwhile, and the first gets all of its text."""
    long_text = platform.worker.made([[40] * 3000], step_tokens=5)
    short = platform.worker.made([[40, 41]])
    platform.worker.reply_for = lambda submit: long_text if submit.sampling.max_tokens == 3000 else short
    async with httpx.AsyncClient(base_url=served, headers=headers, timeout=30) as client:
        body = chat(stream=True, max_tokens=3000)
        async with client.stream("POST", "/v1/chat/completions", json=body) as slow:
            other = await client.post("/v1/chat/completions", json=chat())
            assert other.status_code == 200
            text = "".join([part async for part in slow.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")


def raw_reader(url: str, key: str, body: dict[str, Any]) -> socket.socket:
    """A client with a tiny receive buffer that has sent its request and reads nothing."""
    address = urlsplit(url)
    assert address.hostname is not None
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    opened.connect((address.hostname, address.port))
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    opened.sendall(head.encode() + content)
    return opened


async def test_readers_that_stop_are_paused_then_cut_and_cancelled_while_others_are_served(
    model_files: Any, tmp_path: Path, gateway_over_fakes: Any, serve: Any
) -> None:
    """Replies larger than every buffer on the way: each one's work ends, its slot and its quota come back."""
    async with (
        gateway_over_fakes(model_files, tmp_path, timing={"write_stall_ms": 600}) as platform,
        serve(platform.gateway.app) as url,
    ):
        await platform.put_tenant(quota=QUOTA)
        endless = platform.worker.made([[40] * 1_000_000], step_tokens=2, step_ms=1)
        short = platform.worker.made([[40, 41]])
        platform.worker.reply_for = lambda submit: endless if submit.sampling.max_tokens == 900 else short
        readers = [
            await asyncio.to_thread(
                raw_reader, url, platform.key, chat(stream=True, max_tokens=900, logprobs=True)
            )
            for _ in range(5)
        ]
        headers = {"authorization": f"Bearer {platform.key}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as client,
            asyncio.timeout(60),
        ):
            while len(platform.worker.cancels) < 5:
                assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        await platform.settled()
        assert await platform.reserved_micro() == 0
        assert platform.gateway.links.open_requests() == 0
        exposition = (await platform.admin.get("/metrics")).text
        assert "ridgeline_gateway_slow_readers_cut_total 5.0" in exposition
        for reader in readers:
            reader.close()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
async def test_a_client_that_vanishes_cancels_within_a_step(
    platform: Any, served: str, headers: Any, reset: bool
) -> None:
    platform.worker.answer([[40] * 100_000], step_ms=5)
    reader = await asyncio.to_thread(raw_reader, served, platform.key, chat(stream=True))
    await platform.worker.submitted.wait()
    if reset:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reader.close()
    await asyncio.wait_for(platform.worker.cancelled.wait(), 5)
    await charged_and_free_of_quota(platform)


async def charged_and_free_of_quota(platform: Any) -> None:
    await platform.settled()
    assert await platform.reserved_micro() == 0
    assert platform.gateway.links.open_requests() == 0


async def test_a_connection_is_bounded_and_a_dead_peer_is_found(
    platform: Any, served: str, headers: Any
) -> None:
    found: list[Any] = []
    made = BoundedConnection.connection_made

    def look(self: Any, transport: Any) -> None:
        made(self, transport)
        found.append(transport)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BoundedConnection, "connection_made", look)
        async with httpx.AsyncClient(base_url=served, headers=headers) as client:
            assert (await client.get("/v1/models")).status_code == 200
            opened = found[0].get_extra_info("socket")
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * SEND_BUFFER_BYTES
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == USER_TIMEOUT_MS
            assert found[0].get_write_buffer_limits()[1] == WRITE_BUFFER_BYTES


@pytest.mark.parametrize(
    "sent", [b"", b"GET /v1/models HTTP/1.1\r\nHost: gat"], ids=["nothing", "half-a-head"]
)
async def test_a_head_that_does_not_come_ends_the_connection(
    served: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline_gateway.connection.HEAD_TIMEOUT_S", 0.2)
    address = urlsplit(served)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(sent)
    # An end or a reset; without a limit neither would come.
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_body_that_does_not_come_is_a_408(
    served: str, headers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline_gateway.request_body.BODY_TIMEOUT_S", 0.2)

    async def slowly() -> Any:
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    async with httpx.AsyncClient(base_url=served, headers=headers) as client:
        reply = await client.post("/v1/chat/completions", content=slowly())
    assert (reply.status_code, reply.json()["error"]["code"]) == (408, "body_too_slow")


async def test_an_idle_connection_with_a_served_request_is_not_cut(
    served: str, headers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline_gateway.connection.HEAD_TIMEOUT_S", 0.1)
    async with httpx.AsyncClient(base_url=served, headers=headers) as client:
        first = await client.get("/v1/models")
        await asyncio.sleep(0.3)
        second = await client.get("/v1/models")
        streams = [
            reply.extensions["network_stream"].get_extra_info("client_addr") for reply in (first, second)
        ]
    assert streams[0] == streams[1]
