"""Deltas as Anthropic's messages, whole and streamed."""

from typing import Any

import orjson
from ridgeline_contracts.errors import RidgelineError

from ridgeline_gateway.deltas import ContentDelta, Ending, FinishDelta
from ridgeline_gateway.generation import Batch
from ridgeline_gateway.messages_errors import messages_error_object
from ridgeline_gateway.run import Bill, RunFacts

_STOP_REASONS = {Ending.STOP: "end_turn", Ending.LENGTH: "max_tokens", Ending.TOOL_CALLS: "tool_use"}


class MessagesRenderer:
    """A Renderer for /v1/messages: one choice, one block of text."""

    def __init__(self, facts: RunFacts) -> None:
        self._facts = facts
        self._begun = False
        self._finish = FinishDelta(Ending.STOP)

    def events(self, batch: Batch) -> bytes:
        parts = []
        if not self._begun and batch:
            self._begun = True
            parts += self._beginning()
        for _, delta in batch:
            if isinstance(delta, ContentDelta) and delta.text:
                piece = {"type": "text_delta", "text": delta.text}
                parts.append(_event("content_block_delta", index=0, delta=piece))
            elif isinstance(delta, FinishDelta):
                self._finish = delta
        return b"".join(parts)

    def last_events(self, bill: Bill) -> bytes:
        parts = [] if self._begun else self._beginning()
        parts.append(_event("content_block_stop", index=0))
        extension = bill.extension(self._facts.request_id)
        parts.append(_event("message_delta", delta=self._stop(), usage=_usage(bill), ridgeline=extension))
        return b"".join([*parts, _event("message_stop")])

    def failure(self, error: RidgelineError) -> bytes:
        data = messages_error_object(error, self._facts.request_id)
        return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"

    def body(self, batch: Batch, bill: Bill) -> bytes:
        text = "".join(delta.text for _, delta in batch if isinstance(delta, ContentDelta))
        self._finish = next(delta for _, delta in batch if isinstance(delta, FinishDelta))
        return orjson.dumps(
            {
                **self._message([{"type": "text", "text": text}]),
                **self._stop(),
                "usage": _usage(bill),
                "ridgeline": bill.extension(self._facts.request_id),
            }
        )

    def _beginning(self) -> list[bytes]:
        usage = {
            "input_tokens": self._facts.prompt_tokens,
            "output_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [
            _event("message_start", message=message),
            _event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        ]

    def _message(self, content: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._facts.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._facts.model,
            "content": content,
        }

    def _stop(self) -> dict[str, str | None]:
        stop = self._finish.stop_string
        reason = _STOP_REASONS[self._finish.ending] if stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stop}


def _usage(bill: Bill) -> dict[str, int]:
    """Cached tokens are counted apart from the input here, not as part of it."""
    used = bill.used
    return {
        "input_tokens": used.prompt_tokens - used.cached_tokens,
        "output_tokens": used.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": used.cached_tokens,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
