"""Which of the two APIs a request speaks, and errors in Anthropic's shape."""

from typing import Any

from ridgeline_contracts.errors import Overloaded, RidgelineError

from ridgeline_gateway.api_errors import error_object

VERSION_HEADER = b"anthropic-version"
_PATH = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
}


def speaks_messages(path: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """The messages endpoints, and whoever sends the version header that Anthropic's clients send."""
    return path.startswith(_PATH) or any(name == VERSION_HEADER for name, _ in headers)


def messages_error_object(error: RidgelineError, request_id: str) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    kind = _TYPES.get(error.http_status, "api_error")
    if isinstance(error, Overloaded):
        kind = "overloaded_error"
    message = error_object(error, request_id)["error"]["message"]
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def shaped_error(
    error: RidgelineError, request_id: str, *, path: str, headers: list[tuple[bytes, bytes]]
) -> dict[str, Any]:
    """An error in the shape of the API that the request speaks."""
    made = messages_error_object if speaks_messages(path, headers) else error_object
    return made(error, request_id)
