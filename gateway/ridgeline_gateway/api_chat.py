"""The body of POST /v1/chat/completions."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest, Unsupported

from ridgeline_gateway.api_common import GenerationBody, check_logprobs, check_stream_options
from ridgeline_gateway.chat_template import Message

_CHAT_ONLY_TEXT = "only text is supported here"
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
"""Developer is the later name of system; templates know the older one."""


class ContentPart(BaseModel):
    """Part of a message. Only `text` is supported; others are refused by name."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """A message. An assistant's earlier reply may be sent back as it came: fields that are null or empty do no harm."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None
    tool_calls: list[Any] | None = None
    function_call: dict[str, Any] | None = None
    reasoning_content: str | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    type: str


class ChatBody(GenerationBody):
    """The fields that are served, those that are refused unless they ask for nothing, and those that are ignored."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    prediction: dict[str, Any] | None = None
    """Ignored: it changes only the speed."""

    @property
    def output_limit(self) -> int | None:
        """The most tokens a choice may have, if the request states it."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def top_count(self) -> int | None:
        """Alternatives a token, None when no logprobs are wanted."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """What types alone cannot say. Raises InvalidRequest or Unsupported."""
        check_stream_options(self)
        check_logprobs(self.top_logprobs, param="top_logprobs")
        if self.top_logprobs is not None and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
        for param, asks in _unsupported(self).items():
            if asks:
                raise Unsupported(
                    f"{param} is not supported by this model's workers: leave it out", param=param
                )

    def template_messages(self) -> list[Message]:
        """Messages as a chat template takes them, text parts joined by a newline."""
        return template_messages(self.messages)


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """As `ChatBody.template_messages`. Raises InvalidRequest or Unsupported, naming the message."""
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _unsupported(body: ChatBody) -> dict[str, bool]:
    return {
        "tools": bool(body.tools),
        "tool_choice": body.tool_choice not in (None, "none", "auto"),
        "functions": bool(body.functions),
        "function_call": body.function_call not in (None, "none", "auto"),
        "response_format": body.response_format is not None and body.response_format.type != "text",
        "modalities": "audio" in (body.modalities or ()),
        "audio": body.audio is not None,
        "web_search_options": body.web_search_options is not None,
        "reasoning_effort": body.reasoning_effort not in (None, "none"),
        "verbosity": body.verbosity is not None,
    }


def _template_message(message: ChatMessage, where: str) -> Message:
    role = _ROLES.get(message.role)
    if role is None:
        known = ", ".join(_ROLES)
        raise Unsupported(
            f"role {message.role!r} is not supported: use one of {known}", param=f"{where}.role"
        )
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(message, field):
            raise Unsupported(f"{field} in messages is not supported", param=f"{where}.{field}")
    rendered = {"role": role, "content": _text(message, where)}
    return rendered if message.name is None else {**rendered, "name": message.name}


def _text(message: ChatMessage, where: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is None:
        if message.role == "assistant" and message.refusal is not None:
            return message.refusal
        raise InvalidRequest("content is missing", param=f"{where}.content")
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise Unsupported(
                f"content part of type {part.type!r}: {_CHAT_ONLY_TEXT}",
                param=f"{where}.content[{index}].type",
            )
    return "\n".join(part.text or "" for part in message.content)
