"""The outermost middleware: gives every request an id, answers what nobody caught, and counts responses."""

import base64
import logging
from collections.abc import Callable

import orjson
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import RequestId
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline_gateway.messages_errors import shaped_error, speaks_messages
from ridgeline_gateway.metrics import GatewayMetrics

_log = logging.getLogger(__name__)
_ID_BYTES = 15
_LONGEST_ECHO = 512


def new_request_id(random_bytes: Callable[[int], bytes]) -> RequestId:
    """24 letters and digits, unguessable."""
    return RequestId("req-" + base64.b32encode(random_bytes(_ID_BYTES)).decode().lower())


class RequestContext:
    """Sets `scope["state"]["request_id"]` and the header x-request-id. A client's x-client-request-id is
    echoed.

    While `closing` says so, responses carry `Connection: close`, so that clients move to another gateway.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        random_bytes: Callable[[int], bytes],
        metrics: GatewayMetrics,
        closing: Callable[[], bool],
    ) -> None:
        self._app = app
        self._random_bytes = random_bytes
        self._metrics = metrics
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id(self._random_bytes)
        scope.setdefault("state", {})["request_id"] = request_id
        extra = [(b"x-request-id", request_id.encode())]
        if speaks_messages(scope["path"], scope["headers"]):
            extra.append((b"request-id", request_id.encode()))
        extra += [
            (name, value[:_LONGEST_ECHO])
            for name, value in scope["headers"]
            if name == b"x-client-request-id"
        ]
        started = False

        async def send_marked(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                closing = [(b"connection", b"close")] if self._closing() else []
                message = {**message, "headers": [*message.get("headers", ()), *extra, *closing]}
                self._metrics.http_response(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception as error:
            _log.exception("request.failed request_id=%s path=%s", request_id, scope["path"])
            if started:
                raise
            bug = InvariantError(type(error).__name__)
            shaped = shaped_error(bug, request_id, path=scope["path"], headers=scope["headers"])
            body = orjson.dumps(shaped)
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send_marked({"type": "http.response.start", "status": 500, "headers": headers})
            await send({"type": "http.response.body", "body": body})
