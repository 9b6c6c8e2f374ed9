"""What one replica of a layout serves within its targets: the arithmetic behind pools, prices and fleets."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline_roofline.step.batch import StepBatch, decode_batch, prompt_batch
from ridgeline_roofline.step.residence import held_sequences
from ridgeline_roofline.step.timing import RooflineStepModel

REFERENCE_PROMPT_TOKENS = 4000
REFERENCE_OUTPUT_TOKENS = 500
REFERENCE_TTFT_S = 1.0
REFERENCE_TPOT_S = 0.030


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind, and their targets. The defaults are the reference workload of the capacity unit."""

    prompt_tokens: float = REFERENCE_PROMPT_TOKENS
    """That must be computed: without what the cache gives."""
    output_tokens: float = REFERENCE_OUTPUT_TOKENS
    ttft_s: float = REFERENCE_TTFT_S
    tpot_s: float = REFERENCE_TPOT_S
    cached_tokens: float = 0.0

    @property
    def context_tokens(self) -> float:
        """Of a sequence half-way through its output."""
        return self.cached_tokens + self.prompt_tokens + self.output_tokens / 2


REFERENCE_WORKLOAD = Workload()


def slowed(model: RooflineStepModel, efficiency: float) -> RooflineStepModel:
    """The same model at a share of the memory's and the arithmetic's speed; links and host as they were."""
    slower = replace(model.efficiency, memory_ratio=efficiency, matmul_ratio=efficiency)
    return replace(model, efficiency=slower)


@dataclass(frozen=True, slots=True)
class Served:
    """One replica in balance: as many prompts end as outputs do."""

    rows: int
    step_s: float
    requests_per_s: float
    by: str
    """What stops it from taking more: TPOT, memory, or nothing fits."""


def balanced_step_s(model: RooflineStepModel, work: Workload, rows: float, *, efficiency: float) -> float:
    """Seconds of a step in which `rows` decode, and prompts advance as fast as outputs use them up."""
    chunk = rows * work.prompt_tokens / work.output_tokens
    batch = StepBatch(
        decode_rows=rows,
        context_tokens=work.context_tokens,
        prefill_tokens=chunk,
        prefill_pairs=chunk * (work.cached_tokens + work.prompt_tokens / 2),
    )
    return model.step_s(batch) / efficiency


def prefill_s(model: RooflineStepModel, work: Workload, *, efficiency: float) -> float:
    """A prompt alone."""
    return model.step_s(prompt_batch(work.prompt_tokens, cached_tokens=work.cached_tokens)) / efficiency


def decode_s(model: RooflineStepModel, work: Workload, rows: float, *, efficiency: float) -> float:
    """A step of `rows` that only decode."""
    return model.step_s(decode_batch(rows, work.context_tokens)) / efficiency


def memory_rows(model: RooflineStepModel, work: Workload, *, usable: float = 0.9) -> int:
    """Sequences whose KV fits beside the weights, all GPUs of the layout together; copies of KV heads count."""
    return held_sequences(
        model.model, model.gpu, model.layout, model.formats, work.context_tokens, usable=usable
    )


def served(model: RooflineStepModel, work: Workload, *, efficiency: float = 1.0) -> Served:
    """The most that one replica serves with its TPOT, and a lone prompt's TTFT, within target."""
    memory = memory_rows(model, work)
    if memory == 0:
        return Served(0, 0.0, 0.0, "no KV fits beside the weights")
    if prefill_s(model, work, efficiency=efficiency) > work.ttft_s:
        return Served(0, 0.0, 0.0, "one prompt alone misses the TTFT target")
    rows = largest_count(
        lambda n: balanced_step_s(model, work, n, efficiency=efficiency) <= work.tpot_s, memory
    )
    if rows == 0:
        return Served(0, 0.0, 0.0, "one sequence alone misses the TPOT target")
    step_s = balanced_step_s(model, work, rows, efficiency=efficiency)
    return Served(rows, step_s, rows / (work.output_tokens * step_s), "memory" if rows == memory else "TPOT")


def largest_count(holds: Callable[[int], bool], limit: int) -> int:
    """By bisection: the largest count up to `limit` that holds, for what stops holding once; 0 where none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
