"""The body of POST /v1/responses, in OpenAI's shape, and what it means here."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest, Unsupported

from ridgeline_gateway.api_chat import ChatBody, ChatMessage, ContentPart

_TEXT_PARTS = ("input_text", "output_text", "text")


class InputItem(BaseModel):
    """A message of the conversation; an earlier reply may be sent back as it came."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: str = "message"
    role: str | None = None
    content: str | list[ContentPart] | None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class ResponsesBody(BaseModel):
    """Fields that are served, refused unless they ask for nothing, and ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=256)
    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, lt=2**31)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool | None = None

    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    truncation: str | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    parallel_tool_calls: bool | None = None

    metadata: dict[str, Any] | None = None
    """Ignored but for being given back, as are the following."""
    store: bool | None = None
    """Nothing is stored, whatever it says."""
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    stream_options: dict[str, Any] | None = None

    def chat(self) -> ChatBody:
        """The same request for the chat endpoint's core. Raises InvalidRequest or Unsupported."""
        for param, asks in _unsupported(self).items():
            if asks:
                raise Unsupported(f"{param} is not supported here: leave it out", param=param)
        return ChatBody(
            model=self.model,
            messages=self._messages(),
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            stream=self.stream,
        )

    def _messages(self) -> list[ChatMessage]:
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        if not items:
            raise InvalidRequest("input is empty: give it text or messages", param="input")
        system = [] if self.instructions is None else [ChatMessage(role="system", content=self.instructions)]
        return [*system, *(_message(item, f"input[{index}]") for index, item in enumerate(items))]


def _unsupported(body: ResponsesBody) -> dict[str, bool]:
    text_format = (body.text or {}).get("format") or {"type": "text"}
    return {
        # Replies are not kept: the whole conversation comes with each request.
        "previous_response_id": body.previous_response_id is not None,
        "conversation": body.conversation is not None,
        "background": bool(body.background),
        "prompt": body.prompt is not None,
        "tools": bool(body.tools),
        "tool_choice": body.tool_choice not in (None, "none", "auto"),
        "text.format": text_format.get("type") != "text",
        "text.verbosity": (body.text or {}).get("verbosity") is not None,
        "reasoning": bool((body.reasoning or {}).get("effort") not in (None, "none")),
        "include": bool(body.include),
        "truncation": body.truncation not in (None, "disabled"),
        "top_logprobs": bool(body.top_logprobs),
    }


def _message(item: InputItem, where: str) -> ChatMessage:
    if item.type != "message" or item.role is None:
        raise Unsupported(
            f"input of type {item.type!r} is not supported: give messages", param=f"{where}.type"
        )
    if item.content is None or isinstance(item.content, str):
        return ChatMessage(role=item.role, content=item.content)
    parts = [
        ContentPart(type="text" if part.type in _TEXT_PARTS else part.type, text=part.text)
        for part in item.content
    ]
    return ChatMessage(role=item.role, content=parts)
