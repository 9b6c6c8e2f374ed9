"""The bodies of POST /v1/messages and /v1/messages/count_tokens, in Anthropic's shape, and what they mean here."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest, Unsupported

from ridgeline_gateway.api_chat import ChatBody, ChatMessage, ContentPart


class MessageParam(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["user", "assistant"]
    content: str | list[ContentPart]


class CountBody(BaseModel):
    """What of a request is counted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=256)
    messages: list[MessageParam] = Field(min_length=1)
    system: str | list[ContentPart] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None

    def check(self) -> None:
        """What types alone cannot say. Raises InvalidRequest or Unsupported."""
        asks = {
            "tools": bool(self.tools),
            "tool_choice": self.tool_choice is not None
            and self.tool_choice.get("type") not in ("auto", "none"),
            "thinking": self.thinking is not None and self.thinking.get("type") != "disabled",
        }
        for param, asked in asks.items():
            if asked:
                raise Unsupported(
                    f"{param} is not supported by this model's workers: leave it out", param=param
                )
        if self.messages[-1].role == "assistant":
            raise Unsupported(
                "a reply cannot be begun for the model here: let the last message be the user's",
                param="messages",
            )

    def chat_messages(self) -> list[ChatMessage]:
        """Roles and text as the chat endpoint knows them; the system prompt comes first."""
        system = [] if self.system is None else [_message("system", self.system, "system")]
        return [
            *system,
            *(
                _message(message.role, message.content, f"messages[{index}].content")
                for index, message in enumerate(self.messages)
            ),
        ]


class MessagesBody(CountBody):
    max_tokens: int = Field(ge=1, lt=2**31)
    stop_sequences: list[str] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, lt=2**31)
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    """Ignored: tenants are known by their keys."""
    service_tier: str | None = None
    """Ignored: the tenant's class decides."""

    def chat(self) -> ChatBody:
        """The same request for the chat endpoint's core. Raises InvalidRequest or Unsupported."""
        self.check()
        return ChatBody(
            model=self.model,
            messages=self.chat_messages(),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or None,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stream=self.stream,
        )


def _message(role: str, content: str | list[ContentPart], where: str) -> ChatMessage:
    if not isinstance(content, str) and not content:
        raise InvalidRequest(f"{where} is empty: give it text", param=where)
    # Marks for a prompt cache change nothing: prefixes are cached by themselves.
    parts = content if isinstance(content, str) else [_part(part) for part in content]
    return ChatMessage(role=role, content=parts)


def _part(part: ContentPart) -> ContentPart:
    return ContentPart(type=part.type, text=part.text)
