"""Deltas as OpenAI's text completions, whole and streamed."""

from collections.abc import Sequence
from typing import Any

import orjson
from ridgeline_contracts.errors import RidgelineError

from ridgeline_gateway.deltas import ContentDelta, FinishDelta, TokenDetail
from ridgeline_gateway.generation import Batch
from ridgeline_gateway.render import DONE, event, failure_event
from ridgeline_gateway.run import Bill, RunFacts


class CompletionRenderer:
    """A Renderer for /v1/completions. Choice index = prompt index x n + choice."""

    def __init__(self, facts: RunFacts, *, logprobs: bool, usage: bool) -> None:
        self._facts = facts
        self._logprobs = logprobs
        self._usage = usage
        self._unfinished = facts.choices
        self._last: dict[str, Any] | None = None

    def events(self, batch: Batch) -> bytes:
        parts = []
        for choice, delta in batch:
            if isinstance(delta, ContentDelta):
                parts.append(event(self._chunk([self._choice(choice, [delta], None)])))
            elif isinstance(delta, FinishDelta):
                self._unfinished -= 1
                rendered = self._choice(choice, [], delta.ending.value)
                if self._unfinished:
                    parts.append(event(self._chunk([rendered])))
                else:
                    self._last = rendered
        return b"".join(parts)

    def last_events(self, bill: Bill) -> bytes:
        finish = self._chunk([] if self._last is None else [self._last])
        extension = bill.extension(self._facts.request_id)
        if not self._usage:
            return event({**finish, "ridgeline": extension}) + DONE
        return (
            event(finish) + event({**self._chunk([]), "usage": bill.usage(), "ridgeline": extension}) + DONE
        )

    def failure(self, error: RidgelineError) -> bytes:
        return failure_event(error, self._facts.request_id)

    def body(self, batch: Batch, bill: Bill) -> bytes:
        texts: list[list[ContentDelta]] = [[] for _ in range(self._facts.choices)]
        endings: dict[int, str] = {}
        for choice, delta in batch:
            if isinstance(delta, ContentDelta):
                texts[choice].append(delta)
            elif isinstance(delta, FinishDelta):
                endings[choice] = delta.ending.value
        choices = [self._choice(index, deltas, endings[index]) for index, deltas in enumerate(texts)]
        return orjson.dumps(
            {
                **self._chunk(choices),
                "usage": bill.usage(),
                "ridgeline": bill.extension(self._facts.request_id),
            }
        )

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        facts = self._facts
        chunk = {
            "id": f"cmpl-{facts.request_id}",
            "object": "text_completion",
            "created": facts.created_s,
            "model": facts.model,
            "system_fingerprint": facts.fingerprint,
            "choices": choices,
        }
        return {**chunk, "usage": None} if self._usage else chunk

    def _choice(
        self, index: int, deltas: Sequence[ContentDelta], finish_reason: str | None
    ) -> dict[str, Any]:
        details = [detail for delta in deltas for detail in delta.details]
        return {
            "index": index,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": _logprobs(details) if self._logprobs else None,
            "finish_reason": finish_reason,
        }


def _logprobs(details: Sequence[TokenDetail]) -> dict[str, Any]:
    return {
        "tokens": [detail.text for detail in details],
        "token_logprobs": [detail.logprob for detail in details],
        "top_logprobs": [{other.text: other.logprob for other in detail.top} for detail in details],
        "text_offset": [detail.begin_characters for detail in details],
    }
