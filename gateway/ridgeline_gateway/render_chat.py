"""Deltas as OpenAI's chat completions, whole and streamed."""

from collections.abc import Sequence
from typing import Any

import orjson
from ridgeline_contracts.errors import RidgelineError

from ridgeline_gateway.deltas import (
    ContentDelta,
    Delta,
    FinishDelta,
    ReasoningDelta,
    TokenDetail,
    ToolCallDelta,
)
from ridgeline_gateway.generation import Batch
from ridgeline_gateway.render import DONE, event, failure_event
from ridgeline_gateway.run import Bill, RunFacts


class ChatRenderer:
    """A Renderer for /v1/chat/completions."""

    def __init__(self, facts: RunFacts, *, logprobs: bool, usage: bool) -> None:
        self._facts = facts
        self._logprobs = logprobs
        self._usage = usage
        self._begun: set[int] = set()
        self._unfinished = facts.choices
        self._last: dict[str, Any] | None = None

    def events(self, batch: Batch) -> bytes:
        parts = []
        for choice, delta in batch:
            if choice not in self._begun:
                self._begun.add(choice)
                parts.append(event(self._chunk([_choice(choice, {"role": "assistant", "content": ""})])))
            rendered = self._delta(choice, delta)
            if isinstance(delta, FinishDelta):
                self._unfinished -= 1
                if not self._unfinished:
                    self._last = rendered
                    continue
            parts.append(event(self._chunk([rendered])))
        return b"".join(parts)

    def last_events(self, bill: Bill) -> bytes:
        finish = self._chunk([] if self._last is None else [self._last])
        extension = bill.extension(self._facts.request_id)
        if not self._usage:
            # Clients index choices[0] of every chunk unless they asked for usage: so no chunk without choices.
            return event({**finish, "ridgeline": extension}) + DONE
        return (
            event(finish) + event({**self._chunk([]), "usage": bill.usage(), "ridgeline": extension}) + DONE
        )

    def failure(self, error: RidgelineError) -> bytes:
        return failure_event(error, self._facts.request_id)

    def body(self, batch: Batch, bill: Bill) -> bytes:
        deltas: list[list[Delta]] = [[] for _ in range(self._facts.choices)]
        for choice, delta in batch:
            deltas[choice].append(delta)
        choices = [self._whole_choice(index, found) for index, found in enumerate(deltas)]
        return orjson.dumps(
            {
                **self._head("chat.completion"),
                "choices": choices,
                "usage": bill.usage(),
                "ridgeline": bill.extension(self._facts.request_id),
            }
        )

    def _head(self, kind: str) -> dict[str, Any]:
        facts = self._facts
        return {
            "id": f"chatcmpl-{facts.request_id}",
            "object": kind,
            "created": facts.created_s,
            "model": facts.model,
            "system_fingerprint": facts.fingerprint,
        }

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        chunk = {**self._head("chat.completion.chunk"), "choices": choices}
        return {**chunk, "usage": None} if self._usage else chunk

    def _delta(self, choice: int, delta: Delta) -> dict[str, Any]:
        match delta:
            case ContentDelta(text, details):
                return _choice(
                    choice, {"content": text}, logprobs=_logprobs(details) if self._logprobs else None
                )
            case ReasoningDelta(text):
                return _choice(choice, {"reasoning_content": text})
            case ToolCallDelta():
                return _choice(choice, {"tool_calls": [_tool_call(delta)]})
            case FinishDelta(ending):
                return _choice(choice, {}, finish_reason=ending.value)

    def _whole_choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, Any]:
        content = [delta for delta in deltas if isinstance(delta, ContentDelta)]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(delta.text for delta in content),
            "refusal": None,
        }
        if reasoning := "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)):
            message["reasoning_content"] = reasoning
        if calls := _whole_calls([delta for delta in deltas if isinstance(delta, ToolCallDelta)]):
            message["tool_calls"] = calls
        details = [detail for delta in content for detail in delta.details]
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(details) if self._logprobs else None,
            "finish_reason": next(delta.ending.value for delta in deltas if isinstance(delta, FinishDelta)),
        }


def _choice(
    index: int,
    delta: dict[str, Any],
    *,
    logprobs: dict[str, Any] | None = None,
    finish_reason: str | None = None,
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _logprobs(details: Sequence[TokenDetail]) -> dict[str, Any]:
    return {"content": [_detail(detail) for detail in details], "refusal": None}


def _detail(detail: TokenDetail) -> dict[str, Any]:
    return {
        "token": detail.text,
        "logprob": detail.logprob,
        "bytes": list(detail.data),
        "top_logprobs": [
            {"token": other.text, "logprob": other.logprob, "bytes": list(other.data)} for other in detail.top
        ],
    }


def _tool_call(delta: ToolCallDelta) -> dict[str, Any]:
    function: dict[str, Any] = {"arguments": delta.arguments}
    if delta.name is not None:
        function["name"] = delta.name
    call: dict[str, Any] = {"index": delta.index, "function": function}
    return call if delta.call_id is None else {**call, "id": delta.call_id, "type": "function"}


def _whole_calls(deltas: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        call = calls.setdefault(
            delta.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = delta.call_id or call["id"]
        call["function"]["name"] = delta.name or call["function"]["name"]
        call["function"]["arguments"] += delta.arguments
    return [calls[index] for index in sorted(calls)]
