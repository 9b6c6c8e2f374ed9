"""Thresholds that the platform lives by, each as a value with its derivation in words.

Facts in, decision out. A caller that overrides a value still prints the derivation beside it.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from ridgeline_contracts.step import StepModel, StepShape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """`derivation` is one sentence with the numbers that led to `value`."""

    value: T
    derivation: str


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """A step that is about to be planned: what decodes, and the limits."""

    decode_rows: int
    context_tokens: int
    """Resident context of the decode rows, summed."""
    max_step_tokens: int
    min_chunk_tokens: int
    tpot_target_ms: float | None
    chunk_context_tokens: int = 0
    """Tokens already computed of the prompt whose chunk comes first."""


def chunk_budget_tokens(model: StepModel, facts: ChunkFacts) -> Decision[int]:
    """Prompt tokens to compute in one step: as many as keep the step within the target for those that decode.

    At least `min_chunk_tokens`, so that prompts always get on; at most what the step has left.
    """
    room = max(0, facts.max_step_tokens - facts.decode_rows)
    if facts.decode_rows == 0 or facts.tpot_target_ms is None:
        why = "nothing decodes" if facts.decode_rows == 0 else "no TPOT target is set"
        return Decision(room, f"chunk = {room} tokens, all that a step holds: {why}")
    fitting = _largest_fitting(model, facts, room, facts.tpot_target_ms)
    value = min(room, max(fitting, facts.min_chunk_tokens))
    return Decision(
        value,
        f"chunk = {value} tokens: {facts.decode_rows} rows over {facts.context_tokens} tokens take "
        f"{model.predict_ms(_shape(facts, 0)):.2f} ms of the target {facts.tpot_target_ms:.2f} ms, "
        f"which leaves room for {fitting}; floor {facts.min_chunk_tokens}, ceiling {room}",
    )


def admission_reserve_blocks(running_sequences: int) -> Decision[int]:
    """Blocks a group keeps free when a sequence is admitted: one more for each that runs.

    Each running sequence may need its next block before any other ends; with less in hand, the newcomer would
    be preempted almost at once, and its prefill computed twice. Nothing is kept for an empty engine.
    """
    return Decision(
        running_sequences, f"reserve = {running_sequences} blocks: one for each of the running sequences"
    )


def _shape(facts: ChunkFacts, chunk_tokens: int) -> StepShape:
    return StepShape(
        decode_rows=facts.decode_rows,
        context_tokens=facts.context_tokens,
        prefill_tokens=chunk_tokens,
        prefill_context_tokens=chunk_tokens * facts.chunk_context_tokens + chunk_tokens * chunk_tokens // 2,
    )


def _largest_fitting(model: StepModel, facts: ChunkFacts, room: int, target_ms: float) -> int:
    """By bisection: a step model never falls as the chunk grows."""
    low, high = 0, room
    while low < high:
        middle = (low + high + 1) // 2
        if model.predict_ms(_shape(facts, middle)) <= target_ms:
            low = middle
        else:
            high = middle - 1
    return low
