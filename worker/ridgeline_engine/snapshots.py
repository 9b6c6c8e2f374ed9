"""What the engine tells about itself: its load for routers, its metrics for people."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepCoefficients, StepShape

from ridgeline_engine.policy.census import Census, take_census
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ClassLoad:
    priority: PriorityClass
    waiting: int
    """Sequences without a slot."""
    waiting_tokens: int
    """Prompt tokens still to be computed, of waiting and of running sequences."""


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """For the load report. Block counts are of the KV group with the smallest share free."""

    classes: tuple[ClassLoad, ...]
    running: int
    free_blocks: int
    """Held by nobody."""
    cached_blocks: int
    """The part of `free_blocks` that still holds hittable KV."""
    total_blocks: int
    step_model: StepCoefficients
    draining: bool
    quarantined_blocks: int = 0
    """Given back, but an open launch may still touch them."""
    stranded_bytes: int = 0
    """Cached KV that no hit can reach, of groups that see the whole text; anything but 0 is a bug."""
    host_blocks: int = 0
    """Of all groups together, in the host's pool for swapped sequences."""
    host_used_blocks: int = 0


@dataclass(frozen=True, slots=True)
class StepStats:
    """One completed step."""

    shape: StepShape
    batch: int
    """Rows."""
    cached_tokens: int
    """Prompt tokens of newly admitted sequences that were hits."""
    step_ms: float
    """From the start of planning, or the end of the commit before if that came later, to the end of the commit."""
    device_ms: float
    host_ms: float
    """Spent outside the executor; of a step planned while another ran, in part before `step_ms` began."""
    predicted_ms: float


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What happened so far that nobody asked for."""

    preemptions: tuple[tuple[str, str, int], ...] = ()
    """Cause, kind, count. The kind `wait` is a pause: its sequence kept its blocks."""
    wasted_rows: int = 0
    """Rows launched before the end of their text was known."""
    late_results: int = 0
    """Rows that came back for a slot's former owner, wasted ones among them."""
    row_faults: int = 0
    """Choices that ended by a fault of the device in their row."""
    host_faults: int = 0
    """Choices that ended because the host failed while it worked on their request."""


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Counters since the start, and the newest step."""

    steps: int
    decode_tokens: int
    prefill_tokens: int
    cached_tokens: int
    emitted_tokens: int
    preemptions: int
    """Sequences that lost slot and blocks."""
    counts: EngineCounts
    finished: dict[str, int]
    """Choices by finish reason."""
    step_ms: float
    """Summed, as are the next two."""
    host_ms: float
    predicted_ms: float
    waiting: int
    running: int
    last_step: StepStats | None


def load_snapshot(scheduler: Scheduler, step_model: StepCoefficients, *, draining: bool) -> LoadSnapshot:
    """Reads queues and pools; changes nothing."""
    kv, census = scheduler.kv, take_census(scheduler.running)
    host = [kv.host_counts(group.group) for group in kv.groups]
    tightest = min(
        (kv.pool.counts(group.group) for group in kv.groups), key=lambda counts: counts.free / counts.total
    )
    return LoadSnapshot(
        classes=tuple(_class_load(scheduler, census, priority) for priority in PriorityClass),
        running=len(scheduler.running),
        free_blocks=tightest.free,
        cached_blocks=tightest.kept,
        total_blocks=tightest.total,
        step_model=step_model,
        draining=draining,
        quarantined_blocks=tightest.quarantined,
        stranded_bytes=kv.stranded_bytes(),
        host_blocks=sum(counts.total for counts in host),
        host_used_blocks=sum(counts.held for counts in host),
    )


def _class_load(scheduler: Scheduler, census: Census, priority: PriorityClass) -> ClassLoad:
    running = sum(each.uncomputed_tokens for each in census.prefills if each.request.priority is priority)
    waiting = scheduler.waiting
    return ClassLoad(priority, waiting.count(priority), waiting.tokens(priority) + running)
