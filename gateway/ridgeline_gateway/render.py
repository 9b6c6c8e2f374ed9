"""What an API's renderer must do, and what the OpenAI ones share."""

from typing import Any, Protocol

import orjson
from ridgeline_contracts.errors import RidgelineError

from ridgeline_gateway.api_errors import error_object
from ridgeline_gateway.generation import Batch
from ridgeline_gateway.run import Bill

DONE = b"data: [DONE]\n\n"


class Renderer(Protocol):
    """Gives one request's deltas an API's shape. Holds what that shape needs to remember."""

    def events(self, batch: Batch) -> bytes:
        """Server-sent events; perhaps empty. The last finish is kept for `last_events`."""
        ...

    def last_events(self, bill: Bill) -> bytes:
        """The end of a stream that went well."""
        ...

    def failure(self, error: RidgelineError) -> bytes:
        """The end of a stream that failed after its status was sent."""
        ...

    def body(self, batch: Batch, bill: Bill) -> bytes:
        """The whole reply as JSON."""
        ...


def failure_event(error: RidgelineError, request_id: str) -> bytes:
    """In OpenAI's shape: nothing follows it, no [DONE]."""
    return event(error_object(error, request_id))


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"
