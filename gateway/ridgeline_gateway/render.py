"""What an API's renderer must do, and what the OpenAI ones share."""

from typing import Any, Protocol

import orjson

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

    def body(self, batch: Batch, bill: Bill) -> bytes:
        """The whole reply as JSON."""
        ...


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"
