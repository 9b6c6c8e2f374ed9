"""What the router decides by: facts of workers and of one request. All frozen."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ridgeline_contracts.ids import (
    BlockHash,
    Incarnation,
    ModelName,
    RequestId,
    ReservationId,
    TenantId,
    WorkerId,
)
from ridgeline_contracts.step import StepCoefficients

_NOBODY = Incarnation("")
_NO_TENANT = TenantId("")


class WorkerState(StrEnum):
    STARTING = "starting"
    """Never heard of yet, or it says that its engine loads."""
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    """It was heard of once, and is not any more."""


class Variant(NamedTuple):
    """What exactly is served; equal fields, equal text."""

    model: ModelName
    weights_revision: str = ""
    tokenizer_hash: str = ""
    template_hash: str = ""
    price_version: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """As the worker's last report has it."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    """Prompt tokens that are still to be computed."""
    used_blocks: int = 0
    total_blocks: int = 0
    step_model: StepCoefficients | None = None


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    worker_id: WorkerId
    address: str
    state: WorkerState = WorkerState.STARTING
    incarnation: Incarnation = _NOBODY
    """Of the front; empty until it was heard of."""
    core_incarnation: Incarnation = _NOBODY
    pool: str = ""
    role: str = ""
    variants: tuple[Variant, ...] = ()
    tokenizer_files: tuple[tuple[str, str], ...] = ()
    load: WorkerLoad = field(default_factory=WorkerLoad)
    reported_at_ms: float | None = None
    """When the last report came, on the router's monotonic clock."""

    def serves(self, query: "RouteQuery") -> bool:
        if query.variant is not None:
            return query.variant in self.variants
        return any(variant.model == query.model for variant in self.variants)


@dataclass(frozen=True, slots=True)
class Reserved:
    """What this router has sent to one worker and has not heard the end of."""

    open_requests: int = 0
    unseen_requests: int = 0
    """The part that the worker's last report cannot know yet."""
    unseen_prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """One request to place."""

    request_id: RequestId
    attempt: int
    model: ModelName
    variant: Variant | None = None
    """None: any revision of `model`."""
    tenant: TenantId = _NO_TENANT
    block_hashes: tuple[BlockHash, ...] = ()
    prompt_tokens: int = 0
    expected_output_tokens: int = 0
    remaining_ms: float | None = None
    pool: str = ""
    pinned: frozenset[WorkerId] = frozenset()
    """Empty: any."""
    excluded: frozenset[WorkerId] = frozenset()
    """They failed this request before."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted milliseconds from now."""

    cached_tokens: int
    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker as the decision saw it."""

    worker_id: WorkerId
    eligible: bool
    reason: str
    estimate: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    worker: WorkerFacts
    reason: str
    estimate: Estimate
    candidates: tuple[Candidate, ...]
    reservation_id: ReservationId | None = None
    """Set when the reservation is made, after the decision."""


@dataclass(frozen=True, slots=True)
class Refused:
    code: str
    """Of the error tree."""
    message: str
    retry_after_ms: int | None
    candidates: tuple[Candidate, ...]
