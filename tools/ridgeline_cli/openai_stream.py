"""One streamed chat answer over the OpenAI wire, with the clocks of both ends. Used by `chat` and `demo`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, NotFound, PeerError, RidgelineError, error_from_code

_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 600.0
"""Between two pieces: a long prompt on a slow machine is no fault."""
_STATUS_CODES = {401: "not_authenticated", 403: "not_permitted", 404: "not_found", 429: "rate_limited"}
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")

Message = Mapping[str, str]
"""`{"role": ..., "content": ...}`."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and as whom."""

    base_url: str
    """`/v1` included."""
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are on this process's clock, from just before the request was sent."""

    text: str
    finish_reason: str | None
    client_ttft_ms: float | None
    """None: no text came."""
    client_total_ms: float
    usage: Mapping[str, Any]
    """As the server counted, `{}` where it did not say."""
    extension: Mapping[str, Any]
    """The server's `ridgeline` object: its own clocks, the quota. `{}` for another server."""
    headers: Mapping[str, str]
    """Of the response, names in lower case."""

    @property
    def prompt_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens", 0))

    @property
    def completion_tokens(self) -> int:
        return int(self.usage.get("completion_tokens", 0))

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed again."""
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed as the client saw it: tokens after the first, over the time after the first."""
        if self.client_ttft_ms is None or self.completion_tokens < 2:
            return None
        decode_ms = self.client_total_ms - self.client_ttft_ms
        return (self.completion_tokens - 1) * 1000 / decode_ms if decode_ms > 0 else None


def open_client(server: Server) -> httpx.Client:
    """A client for this server. Proxies of the environment apply unless it is on this machine."""
    is_local = httpx.URL(server.base_url).host in _LOCAL_HOSTS
    timeout = httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
    return httpx.Client(timeout=timeout, trust_env=not is_local)


def first_model(client: httpx.Client, server: Server) -> str:
    """The first model that the key may use.

    Raises NotFound if there is none, and what a refused request raises.
    """
    with _reached(server):
        reply = client.get(f"{server.base_url}/models", headers=_headers(server))
    _raise_for_status(reply)
    models = [str(model["id"]) for model in reply.json()["data"]]
    if not models:
        raise NotFound(
            f"{server.base_url} serves no model that this key may use: start a worker, or check the key"
        )
    return models[0]


def stream_chat(
    client: httpx.Client,
    server: Server,
    *,
    model: str,
    messages: Iterable[Message],
    options: Mapping[str, Any],
    clock: Clock,
    on_text: Callable[[str], None],
) -> Answer:
    """Asks and hands each piece of text to `on_text` as it comes.

    `options` are further fields of the request. Raises the error that the server names, also when it comes in
    the middle of the stream, and PeerError where there is no server or the stream ends too soon.
    """
    body = {
        "model": model,
        "messages": [dict(message) for message in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **options,
    }
    started_ms = clock.monotonic_ms()
    gathered = _Gathered()
    with (
        _reached(server),
        client.stream(
            "POST", f"{server.base_url}/chat/completions", json=body, headers=_headers(server)
        ) as reply,
    ):
        if reply.status_code != httpx.codes.OK:
            reply.read()
            _raise_for_status(reply)
        for event in sse_objects(reply.iter_lines()):
            text = gathered.take(event)
            if text and gathered.first_ms is None:
                gathered.first_ms = clock.monotonic_ms()
            if text:
                on_text(text)
        headers = {name.lower(): value for name, value in reply.headers.items()}
    ttft_ms = None if gathered.first_ms is None else gathered.first_ms - started_ms
    return Answer(
        text="".join(gathered.pieces),
        finish_reason=gathered.finish_reason,
        client_ttft_ms=ttft_ms,
        client_total_ms=clock.monotonic_ms() - started_ms,
        usage=gathered.usage,
        extension=gathered.extension,
        headers=headers,
    )


def sse_objects(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to `[DONE]`.

    Comments and other fields are passed over. Raises PeerError if the stream ends without `[DONE]`, and the
    error that an error event names.
    """
    for line in lines:
        name, _, value = line.partition(":")
        if name != "data":
            continue
        text = value.removeprefix(" ")
        if text == "[DONE]":
            return
        held: dict[str, Any] = json.loads(text)
        if "error" in held:
            raise _named_error(held["error"], default_code="unavailable")
        yield held
    raise PeerError("the answer stopped in the middle: the server or the connection went away")


@dataclass(slots=True)
class _Gathered:
    """What the events of one answer add up to."""

    pieces: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    extension: dict[str, Any] = field(default_factory=dict)
    first_ms: float | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Takes one chunk in and returns the text in it."""
        self.usage = event.get("usage") or self.usage
        self.extension = event.get("ridgeline") or self.extension
        text = ""
        for choice in event.get("choices", []):
            text += (choice.get("delta") or {}).get("content") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if text:
            self.pieces.append(text)
        return text


class _reached:
    """Turns a failed connection into one clear error."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise PeerError(
                f"nothing answers at {self._server.base_url}: start the platform with `ridgeline up`, "
                "or mend --base-url"
            ) from error
        if isinstance(error, httpx.HTTPError):
            raise PeerError(f"the connection to {self._server.base_url} broke: {error}") from error


def _headers(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.api_key}"}


def _raise_for_status(reply: httpx.Response) -> None:
    if reply.is_success:
        return
    try:
        held = reply.json()["error"]
    except (ValueError, KeyError, TypeError):
        held = {"message": f"the server answered {reply.status_code}: {reply.text[:200]}"}
    otherwise = "unavailable" if reply.is_server_error else "invalid_request"
    default_code = _STATUS_CODES.get(reply.status_code, otherwise)
    raise _named_error(held, default_code=default_code)


def _named_error(held: Mapping[str, Any], *, default_code: str) -> RidgelineError:
    message = str(held.get("message") or "the server gave an error without a message")
    named = error_from_code(str(held.get("code")), message)
    if isinstance(named, InvariantError):
        # A bug, but not one of this process.
        return PeerError(message)
    return error_from_code(default_code, message) if type(named) is RidgelineError else named
