"""Deltas as OpenAI's responses, whole and streamed."""

from typing import Any

import orjson
from ridgeline_contracts.errors import RidgelineError

from ridgeline_gateway.api_errors import error_object
from ridgeline_gateway.api_responses import ResponsesBody
from ridgeline_gateway.deltas import ContentDelta, Ending, FinishDelta
from ridgeline_gateway.generation import Batch
from ridgeline_gateway.run import Bill, RunFacts


class ResponsesRenderer:
    """A Renderer for /v1/responses: one message, one part of text. Keeps the text, which the last events repeat."""

    def __init__(self, facts: RunFacts, body: ResponsesBody) -> None:
        self._facts = facts
        self._body = body
        self._sequence = 0
        self._begun = False
        self._text: list[str] = []
        self._ending = Ending.STOP

    def events(self, batch: Batch) -> bytes:
        parts = []
        if not self._begun and batch:
            parts += self._beginning()
        for _, delta in batch:
            if isinstance(delta, ContentDelta) and delta.text:
                self._text.append(delta.text)
                parts.append(self._piece("output_text.delta", delta=delta.text, logprobs=[]))
            elif isinstance(delta, FinishDelta):
                self._ending = delta.ending
        return b"".join(parts)

    def last_events(self, bill: Bill) -> bytes:
        parts = [] if self._begun else self._beginning()
        text = "".join(self._text)
        parts.append(self._piece("output_text.done", text=text, logprobs=[]))
        parts.append(self._piece("content_part.done", part=_part(text)))
        parts.append(self._event("output_item.done", output_index=0, item=self._item(text)))
        kind = "incomplete" if self._ending is Ending.LENGTH else "completed"
        return b"".join([*parts, self._event(kind, response=self._response(kind, text, bill))])

    def failure(self, error: RidgelineError) -> bytes:
        held = error_object(error, self._facts.request_id)["error"]
        fields = {name: held[name] for name in ("code", "message", "param")}
        data = {"type": "error", "sequence_number": self._sequence, **fields}
        return b"event: error\ndata: " + orjson.dumps(data) + b"\n\n"

    def body(self, batch: Batch, bill: Bill) -> bytes:
        text = "".join(delta.text for _, delta in batch if isinstance(delta, ContentDelta))
        self._ending = next(delta.ending for _, delta in batch if isinstance(delta, FinishDelta))
        kind = "incomplete" if self._ending is Ending.LENGTH else "completed"
        return orjson.dumps(self._response(kind, text, bill))

    def _beginning(self) -> list[bytes]:
        self._begun = True
        started = self._response("in_progress", None, None)
        item = {**self._item(""), "status": "in_progress", "content": []}
        return [
            self._event("created", response=started),
            self._event("in_progress", response=started),
            self._event("output_item.added", output_index=0, item=item),
            self._piece("content_part.added", part=_part("")),
        ]

    def _piece(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        name = f"response.{kind}"
        data = {"type": name, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(data) + b"\n\n"

    @property
    def _item_id(self) -> str:
        return f"msg_{self._facts.request_id}"

    def _item(self, text: str) -> dict[str, Any]:
        status = "incomplete" if self._ending is Ending.LENGTH else "completed"
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part(text)],
        }

    def _response(self, status: str, text: str | None, bill: Bill | None) -> dict[str, Any]:
        body, facts = self._body, self._facts
        found: dict[str, Any] = {
            "id": f"resp_{facts.request_id}",
            "object": "response",
            "created_at": facts.created_s,
            "status": status,
            "model": facts.model,
            "output": [] if text is None else [self._item(text)],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        if bill is not None:
            found["usage"] = _usage(bill)
            found["ridgeline"] = bill.extension(facts.request_id)
        return found


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(bill: Bill) -> dict[str, Any]:
    used = bill.used
    return {
        "input_tokens": used.prompt_tokens,
        "input_tokens_details": {"cached_tokens": used.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.prompt_tokens + used.output_tokens,
    }
