"""What the engine is asked, and what it answers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ridgeline_contracts.errors import RidgelineError
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams, TokenLogprob

_NO_TENANT = TenantId("")


class RequestKey(NamedTuple):
    """A request id may come again: only together with its attempt does it name one piece of work."""

    request_id: RequestId
    attempt: Attempt


class PriorityClass(StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, checked by `Engine.submit`."""

    key: RequestKey
    prompt: tuple[int, ...]
    sampling: SamplingParams
    choices: int = 1
    emitted: tuple[tuple[int, ...], ...] = ()
    """By choice: tokens that an earlier attempt delivered. Generation goes on after them, at their
    positions."""
    salt: bytes = b""
    adapter_revision: str = ""
    tenant: TenantId = _NO_TENANT
    weight: float = 1.0
    priority: PriorityClass = PriorityClass.INTERACTIVE
    deadline_ms: float | None = None
    """On the engine's monotonic clock."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Counts:
    """Kept apart: speculation computes more than it accepts, overshoot accepts more than it emits.

    `computed_tokens` counts positions run through the model, prompt and output, recomputation included.
    Accepted and emitted tokens are this attempt's: what earlier attempts delivered is not counted again.
    """

    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    accepted_tokens: int
    emitted_tokens: int


@dataclass(frozen=True, slots=True)
class EngineClocks:
    """Milliseconds since the engine received the request. A stage that was not reached is None."""

    engine_queue_ms: float | None
    engine_ttft_ms: float | None
    engine_total_ms: float
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    counts: Counts
    clocks: EngineClocks
    error: RidgelineError | None = None


class OutputRow(NamedTuple):
    """What one step gave one choice. `finish` is set exactly once a choice, in its last row."""

    key: RequestKey
    choice: int
    first_offset: int
    """Index in the choice's output of `tokens[0]`, counting what earlier attempts emitted."""
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
