"""Every error has OpenAI's shape, the right status and a request id."""

import json
from typing import Any

import httpx
import pytest

CHAT = "/v1/chat/completions"


def check_shape(reply: Any) -> dict[str, Any]:
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert reply.headers["x-request-id"].startswith("req-")
    assert reply.headers["content-type"] == "application/json"
    return dict(error)


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        pytest.param("GET", "/v2/nothing", b"", 404, id="no-such-route"),
        pytest.param("GET", CHAT, b"", 405, id="no-such-method"),
        pytest.param("POST", CHAT, b"{", 400, id="not-json"),
        pytest.param("POST", CHAT, b"", 400, id="no-body"),
        pytest.param("POST", CHAT, b"[]", 400, id="not-an-object"),
        pytest.param("POST", CHAT, b"\xff\xfe", 400, id="not-utf-8"),
        pytest.param("POST", CHAT, b"[" * 100_000, 400, id="deeply-nested"),
        pytest.param("POST", CHAT, b'{"model": "fake-model"}', 400, id="a-field-is-missing"),
        pytest.param("POST", CHAT, b" " * (4 * 1024 * 1024 + 1), 413, id="too-large"),
    ],
)
async def test_errors_have_openais_shape(
    platform: Any, method: str, path: str, content: bytes, status: int
) -> None:
    reply = await platform.client.request(method, path, content=content)
    assert reply.status_code == status
    check_shape(reply)


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit(platform: Any) -> None:
    async def endless() -> Any:
        for _ in range(1000):
            yield b" " * 100_000

    reply = await platform.client.post(CHAT, content=endless())
    assert reply.status_code == 413
    assert check_shape(reply)["code"] == "body_too_large"


@pytest.mark.parametrize(
    "authorization",
    [
        pytest.param(None, id="none"),
        pytest.param("Basic abc", id="another-scheme"),
        pytest.param("Bearer", id="no-key"),
        pytest.param("Bearer sk-open-sesame", id="another-form"),
        pytest.param("Bearer rl-000000000000-" + "x" * 43, id="unknown"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake-model", CHAT])
async def test_a_missing_or_wrong_key_is_a_401_that_does_not_echo_it(
    platform: Any, authorization: str | None, path: str
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    transport = httpx.ASGITransport(platform.gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        reply = await (client.post(path, content=b"{}") if path == CHAT else client.get(path))
    assert reply.status_code == 401
    error = check_shape(reply)
    assert (error["code"], reply.headers["www-authenticate"]) == ("invalid_api_key", "Bearer")
    assert "sesame" not in reply.text


async def test_a_key_with_another_secret_is_refused(platform: Any) -> None:
    wrong = platform.key[:-1] + ("a" if platform.key[-1] != "a" else "b")
    reply = await platform.client.get("/v1/models", headers={"authorization": f"Bearer {wrong}"})
    assert reply.status_code == 401


async def test_a_bug_is_a_500_that_keeps_its_words_to_the_log(
    platform: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(platform.gateway.directory, "models", broken)
    reply = await platform.client.get("/v1/models")
    assert reply.status_code == 500
    error = check_shape(reply)
    assert "secret detail" not in reply.text
    assert reply.headers["x-request-id"] in error["message"]
    assert "a secret detail" in caplog.text


async def test_the_clients_own_request_id_is_only_echoed(platform: Any) -> None:
    reply = await platform.client.get("/v1/models", headers={"x-client-request-id": "mine"})
    assert reply.headers["x-client-request-id"] == "mine"
    assert reply.headers["x-request-id"] != "mine"


async def test_no_prompt_no_output_and_no_key_is_logged(
    platform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    platform.worker.say("hello world")
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "the quick brown fox"}]}
    await platform.client.post(CHAT, json=body)
    await platform.client.post(CHAT, json={**body, "stream": True})
    await platform.client.post(CHAT, json={**body, "frobnicate": "the quick brown fox"})
    await platform.settled()
    assert "request.done" in caplog.text
    for secret in ("quick brown", "hello world", platform.key, platform.key[-43:]):
        assert secret not in caplog.text


async def test_a_draining_gateway_asks_clients_to_connect_elsewhere(platform: Any) -> None:
    assert "connection" not in (await platform.client.get("/v1/models")).headers
    platform.gateway.drain()
    reply = await platform.client.get("/v1/models")
    assert (reply.status_code, reply.headers["connection"]) == (200, "close")
    assert platform.gateway.health().problem == "draining"


async def test_the_description_of_the_api_is_whole(platform: Any) -> None:
    schema = (await platform.client.get("/openapi.json")).json()
    text = json.dumps(schema)
    names = [part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]]
    assert set(names) <= set(schema["components"]["schemas"])
    assert "ChatBody" in names
