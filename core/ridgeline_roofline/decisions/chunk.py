"""Prompt tokens that one step may compute beside the rows that decode."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision


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
