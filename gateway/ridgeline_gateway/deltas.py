"""Typed pieces of one choice's output. The streaming core makes them; the render modules give them an API's shape."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Ending(StrEnum):
    """Why a choice ended, as far as a client may know."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True)
class TokenAlternative:
    """One of the most likely tokens at a position. `data` are its own bytes, which may be part of a character."""

    text: str
    data: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenDetail:
    """The logprob of a token whose text has been sent. Natural logarithm."""

    text: str
    data: bytes
    logprob: float
    top: tuple[TokenAlternative, ...]
    begin_characters: int
    """Where the token begins in the choice's text."""


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str
    details: tuple[TokenDetail, ...] = ()
    """Tokens whose last character is released by this delta (empty unless logprobs were asked for)."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: `call_id` and `name` come with the first piece, arguments grow as JSON text."""

    index: int
    call_id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class FinishDelta:
    """The last delta of a choice."""

    ending: Ending
    stop_string: str | None = None
    """The stop string that ended it, if one did."""


Delta: TypeAlias = ContentDelta | ReasoningDelta | ToolCallDelta | FinishDelta
