"""KV that the batch class may hold while interactive requests decode."""

from dataclasses import dataclass

from ridgeline_contracts.step import StepModel, StepShape

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import decode_ms


@dataclass(frozen=True, slots=True)
class KVShareFacts:
    interactive_rows: int
    """Running, in decode or prefill."""
    interactive_context_tokens: int
    """Theirs, summed."""
    batch_mean_context_tokens: int
    """Of the batch sequences that run, or of the first that waits."""
    pool_tokens: int
    tpot_target_ms: float | None


def batch_kv_tokens(model: StepModel, facts: KVShareFacts) -> Decision[int]:
    """KV positions that batch sequences may hold: those of as many rows as keep the step within the target.

    Each batch row lengthens every interactive token by its row and by the KV it reads; the target minus what
    the interactive rows take themselves, divided by that, is how many may run. All of the pool when nobody
    interactive is there or no target is set.
    """
    if facts.tpot_target_ms is None or facts.interactive_rows == 0:
        why = "nothing interactive runs" if facts.interactive_rows == 0 else "no TPOT target is set"
        return Decision(facts.pool_tokens, f"batch KV = {facts.pool_tokens} tokens, the pool: {why}")
    mean = max(1, facts.batch_mean_context_tokens)
    own_ms = decode_ms(model, facts.interactive_rows, facts.interactive_context_tokens)
    rows = _rows_within(model, facts, mean)
    value = min(facts.pool_tokens, rows * mean)
    return Decision(
        value,
        f"batch KV = {value} tokens: {facts.interactive_rows} interactive rows over "
        f"{facts.interactive_context_tokens} tokens take {own_ms:.2f} ms of the TPOT target "
        f"{facts.tpot_target_ms:.2f} ms, which leaves room for {rows} batch rows of {mean} tokens",
    )


def _rows_within(model: StepModel, facts: KVShareFacts, mean: int) -> int:
    """By bisection, up to what the pool holds."""
    low, high = 0, max(0, facts.pool_tokens // mean)
    while low < high:
        middle = (low + high + 1) // 2
        step_ms = decode_ms(
            model, facts.interactive_rows + middle, facts.interactive_context_tokens + middle * mean
        )
        if facts.tpot_target_ms is not None and step_ms <= facts.tpot_target_ms:
            low = middle
        else:
            high = middle - 1
    return low


def batch_rows_beside(
    model: StepModel, planned: StepShape, *, rows: int, mean_context_tokens: int, target_ms: float
) -> int:
    """How many of `rows` batch rows run beside what is planned and keep the step within the target.

    The others pause for the step and keep their KV: an interactive prompt's chunk takes their time.
    """
    low, high = 0, rows
    while low < high:
        middle = (low + high + 1) // 2
        step_ms = model.predict_ms(
            StepShape(
                planned.decode_rows + middle,
                planned.context_tokens + middle * mean_context_tokens,
                planned.prefill_tokens,
                planned.prefill_context_tokens,
            )
        )
        if step_ms <= target_ms:
            low = middle
        else:
            high = middle - 1
    return low
