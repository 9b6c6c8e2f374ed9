"""Prompt tokens that one step may compute beside the rows that decode."""

from dataclasses import dataclass
from typing import Final

from ridgeline_contracts.blockhash import GRANULE_TOKENS
from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision

LEAST_CHUNK_TOKENS: Final = GRANULE_TOKENS
"""The least that is worth a step: a block's granule. Below it a prompt would cache nothing for many steps."""


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
    gap_bound_ms: float | None = None
    """No step that decodes is to last longer; None: as long as the floor takes at the start of a prompt."""
    planned_tokens: int = 0
    """Prompt tokens that this step already computes, of other prompts."""
    planned_context_tokens: int = 0
    """Their chunk x context, as in StepShape."""


def chunk_budget_tokens(model: StepModel, facts: ChunkFacts) -> Decision[int]:
    """Prompt tokens to compute in one step: as many as keep the step within the target for those that decode.

    Where nothing fits, prompts get a floor all the same, or they would starve: `min_chunk_tokens`, but fewer
    where these take the step past the gap bound, because each chunk token reads all of the prompt before it.
    Never fewer than a granule; at most what the step has left.
    """
    room = max(0, facts.max_step_tokens - facts.decode_rows - facts.planned_tokens)
    if facts.decode_rows == 0 or facts.tpot_target_ms is None:
        why = "nothing decodes" if facts.decode_rows == 0 else "no TPOT target is set"
        return Decision(room, f"chunk = {room} tokens, all that a step holds: {why}")
    fitting = _largest_fitting(model, facts, room, facts.tpot_target_ms)
    bound = gap_bound_ms(model, facts)
    least = max(0, min(LEAST_CHUNK_TOKENS, facts.min_chunk_tokens) - facts.planned_tokens)
    wanted = max(0, facts.min_chunk_tokens - facts.planned_tokens)
    floor = max(least, _largest_fitting(model, facts, wanted, bound.value))
    value = min(room, max(fitting, floor))
    beside = f" beside {facts.planned_tokens} prompt tokens" if facts.planned_tokens else ""
    return Decision(
        value,
        f"chunk = {value} tokens: {facts.decode_rows} rows over {facts.context_tokens} tokens{beside} take "
        f"{_chunk_ms(model, facts, 0):.2f} ms of the target {facts.tpot_target_ms:.2f} ms, "
        f"which leaves room for {fitting} behind {facts.chunk_context_tokens} tokens of prompt; "
        f"floor {floor} of {facts.min_chunk_tokens} by {bound.derivation}; ceiling {room}",
    )


def gap_bound_ms(model: StepModel, facts: ChunkFacts) -> Decision[float]:
    """The longest gap between two tokens that a prefill may cause: long-prompt guard.

    Unless set, it is the target or, if that is longer, a step with the floor chunk at the start of a prompt:
    what short prompts cost anyway is granted to long ones too, at any depth.
    """
    shape = StepShape(
        facts.decode_rows,
        facts.context_tokens,
        facts.min_chunk_tokens,
        facts.min_chunk_tokens * facts.min_chunk_tokens // 2,
    )
    derived = max(model.predict_ms(shape), facts.tpot_target_ms or 0.0)
    why = f"gap bound {derived:.2f} ms, the floor's step at the start of a prompt or the target"
    if facts.gap_bound_ms is None:
        return Decision(derived, why)
    return Decision(facts.gap_bound_ms, f"gap bound {facts.gap_bound_ms:.2f} ms, as set; derived {why}")


def _chunk_ms(model: StepModel, facts: ChunkFacts, chunk_tokens: int) -> float:
    return model.predict_ms(
        StepShape(
            decode_rows=facts.decode_rows,
            context_tokens=facts.context_tokens,
            prefill_tokens=facts.planned_tokens + chunk_tokens,
            prefill_context_tokens=facts.planned_context_tokens
            + chunk_tokens * facts.chunk_context_tokens
            + chunk_tokens * chunk_tokens // 2,
        )
    )


def _largest_fitting(model: StepModel, facts: ChunkFacts, room: int, limit_ms: float) -> int:
    """By bisection: a step model never falls as the chunk grows."""
    low, high = 0, room
    while low < high:
        middle = (low + high + 1) // 2
        if _chunk_ms(model, facts, middle) <= limit_ms:
            low = middle
        else:
            high = middle - 1
    return low
