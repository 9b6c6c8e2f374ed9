"""Reading a streamed answer: text, clocks, counts, and every way in which it can go wrong."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from ridgeline_cli.openai_stream import Answer, Server, first_model, sse_objects, stream_chat
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import (
    NotAuthenticated,
    NotFound,
    PeerError,
    RateLimited,
    RidgelineError,
    WorkerLost,
)

SERVER = Server("http://server/v1", "rl-key")
USAGE = {"prompt_tokens": 33, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 32}}


def _chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> str:
    choices = [{"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}]
    return "data: " + json.dumps({"choices": choices, **more})


def _stream(*lines: str) -> Callable[[httpx.Request], httpx.Response]:
    body = "\n\n".join(lines) + "\n\n"
    return lambda request: httpx.Response(200, text=body, headers={"X-Request-Id": "req-1"})


def _error(status: int, code: str) -> Callable[[httpx.Request], httpx.Response]:
    held = {"error": {"message": "why", "code": code}}
    return lambda request: httpx.Response(status, json=held)


def _ask(handler: Callable[[httpx.Request], httpx.Response]) -> tuple[Answer, list[str]]:
    pieces: list[str] = []
    virtual = VirtualClock()

    def on_text(text: str) -> None:
        pieces.append(text)
        virtual.advance(100)

    with httpx.Client(transport=httpx.MockTransport(handler)) as client:
        answer = stream_chat(
            client,
            SERVER,
            model="m",
            messages=[{"role": "user", "content": "hello"}],
            options={"temperature": 0},
            clock=virtual,
            on_text=on_text,
        )
    return answer, pieces


def test_text_counts_clocks_and_headers_of_a_whole_answer() -> None:
    extension = {"clocks": {"engine_ttft_ms": 5.0}}
    usage_chunk = "data: " + json.dumps({"choices": [], "usage": USAGE, "ridgeline": extension})
    answer, pieces = _ask(
        _stream(
            ": comment",
            _chunk(),
            _chunk("Hel"),
            _chunk("lo"),
            _chunk(finish="stop"),
            usage_chunk,
            "data: [DONE]",
        )
    )
    assert pieces == ["Hel", "lo"]
    assert (answer.text, answer.finish_reason) == ("Hello", "stop")
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (33, 32, 3)
    assert answer.extension == extension
    assert answer.headers["x-request-id"] == "req-1"
    assert (answer.client_ttft_ms, answer.client_total_ms) == (0, 200)
    assert answer.tokens_per_s == 2 * 1000 / 200


def test_the_request_asks_for_usage_and_carries_the_key() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return _stream("data: [DONE]")(request)

    answer, _ = _ask(handler)
    (request,) = seen
    body = json.loads(request.content)
    assert request.headers["authorization"] == "Bearer rl-key"
    assert body["stream_options"] == {"include_usage": True}
    assert body["temperature"] == 0
    assert (answer.client_ttft_ms, answer.tokens_per_s, answer.text) == (None, None, "")


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        pytest.param(_error(401, "not_authenticated"), NotAuthenticated, id="named-by-code"),
        pytest.param(_error(429, "something_else"), RateLimited, id="named-by-status"),
        pytest.param(_error(404, "model_not_found"), NotFound, id="openai-code"),
        pytest.param(_error(503, "x"), PeerError, id="server"),
        pytest.param(_error(500, "invariant"), PeerError, id="a-bug-over-there"),
        pytest.param(lambda request: httpx.Response(502, text="<html>"), PeerError, id="a-proxy-in-between"),
        pytest.param(
            _stream(_chunk("Hel"), 'data: {"error": {"message": "why", "code": "worker_lost"}}'),
            WorkerLost,
            id="in-the-middle",
        ),
        pytest.param(_stream(_chunk("Hel")), PeerError, id="cut-off"),
    ],
)
def test_a_failure_raises_the_error_that_was_named(
    handler: Callable[[httpx.Request], httpx.Response], error: type[RidgelineError]
) -> None:
    with pytest.raises(error):
        _ask(handler)


def test_a_server_that_is_not_there_is_said_in_one_line() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(PeerError, match="nothing answers at http://server/v1: start"):
        _ask(refuse)


def test_a_connection_that_breaks_is_no_traceback() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError("peer closed", request=request)

    with pytest.raises(PeerError, match="broke: peer closed"):
        _ask(broken)


def test_events_after_done_are_not_read() -> None:
    assert list(sse_objects(['data: {"a": 1}', "", "event: x", "data:[DONE]", "data: not json"])) == [
        {"a": 1}
    ]


def test_the_first_model_is_taken_and_none_is_an_error() -> None:
    def models(*names: str) -> httpx.Client:
        held = {"data": [{"id": name} for name in names]}
        return httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=held)))

    with models("a", "b") as client:
        assert first_model(client, SERVER) == "a"
    with models() as client, pytest.raises(NotFound, match="serves no model"):
        first_model(client, SERVER)


def test_the_key_is_not_in_the_servers_repr() -> None:
    assert "rl-key" not in repr(SERVER)
