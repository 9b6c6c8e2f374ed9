"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

import math
from typing import Any

from pydantic import ValidationError
from ridgeline_contracts.errors import (
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    PeerError,
    RateLimited,
    RidgelineError,
)

from ridgeline_gateway.deadlines import NO_RETRY_ABOVE_MS

_TYPES: tuple[tuple[type[RidgelineError], str], ...] = (
    (NotPermitted, "permission_error"),
    (RateLimited, "rate_limit_error"),
    (PeerError, "server_error"),
)
_CODES = {
    "not_authenticated": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "unsupported": "unsupported_value",
}
_UNION_TAGS = frozenset({"str", "int", "float", "bool"})


class ContextTooLong(InvalidRequest):
    """The prompt and what is to follow do not fit into the model's context."""

    code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    code = "body_too_large"
    http_status = 413


class BodyTooSlow(InvalidRequest):
    code = "body_too_slow"
    http_status = 408


def error_object(error: RidgelineError, request_id: str) -> dict[str, Any]:
    """The body of an error reply or of an error event. An internal error's own words stay in the log."""
    status = error.http_status
    kind = next((name for found, name in _TYPES if isinstance(error, found)), None)
    if kind is None:
        kind = "invalid_request_error" if 400 <= status < 500 else "server_error"
    message = error.message
    if status == 500:
        message = f"an internal error; quote request {request_id} when you report it"
    code = _CODES.get(error.code, error.code)
    if isinstance(error, NotFound) and error.param == "model":
        code = "model_not_found"
    return {"error": {"message": message, "type": kind, "param": error.param, "code": code}}


def error_headers(error: RidgelineError) -> dict[str, str]:
    """Retry-After in seconds, as HTTP has it, and in milliseconds, as OpenAI's clients prefer it."""
    headers = {}
    if error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
        headers["retry-after-ms"] = str(error.retry_after_ms)
        if error.retry_after_ms > NO_RETRY_ABOVE_MS:
            headers["x-should-retry"] = "false"
    if isinstance(error, NotAuthenticated):
        headers["www-authenticate"] = "Bearer"
    return headers


def invalid_body(error: ValidationError) -> InvalidRequest:
    """The first problem that pydantic found, naming the field."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _param(found["loc"])
    if found["type"] == "json_invalid":
        return InvalidRequest("the body is not valid JSON")
    if found["type"] == "extra_forbidden":
        return InvalidRequest(f"unknown argument: {param}", param=param)
    if found["type"] == "missing":
        return InvalidRequest(f"missing required argument: {param}", param=param)
    return InvalidRequest(f"{param or 'the body'} is invalid: {_sentence(found['msg'])}", param=param)


def _sentence(message: str) -> str:
    message = message.removeprefix("Value error, ")
    return message[:1].lower() + message[1:]


def _param(location: tuple[int | str, ...]) -> str | None:
    """`messages[0].content` of ('messages', 0, 'content', 'str'): names of union members are no part of the path."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in _UNION_TAGS and part.isidentifier():
            path += f".{part}" if path else part
    return path or None
