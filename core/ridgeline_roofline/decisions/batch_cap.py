"""How many sequences decode at once: the batch of the highest goodput, not of the highest throughput."""

from dataclasses import dataclass
from math import isclose
from typing import Final

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import decode_ms

_LEAST_STEP_MS: Final = 1e-6
"""A model fitted to steps that were all prompts may give decode rows no time at all."""
_EQUAL_RATIO: Final = 1e-6


@dataclass(frozen=True, slots=True)
class BatchCapFacts:
    """What a typical sequence holds, and what the machine has."""

    mean_context_tokens: int
    pool_tokens: int
    """KV positions of the pool."""
    slots: int
    """Rows that the executor can hold."""
    tpot_target_ms: float | None


def batch_cap(model: StepModel, facts: BatchCapFacts) -> Decision[int]:
    """The batch B that finishes most requests within the TPOT target: B / step(B) at its highest where
    step(B) is within it.

    A step of B rows at the mean context takes a + b x B, so throughput B / (a + b x B) is a hyperbola: it rises
    towards 1 / b and has half of it at B = a / b. Past the target a larger batch still raises throughput, but
    no request of it is on time: goodput falls to nothing. Where one row alone misses the target, no batch is on
    time, and the cap is what slots and pool hold: then throughput is all there is to gain. Of batches that are
    equally good the largest is taken, for which fewer wait: without a fixed part (a = 0) all of them are.
    """
    context = max(1, facts.mean_context_tokens)
    pool_rows = max(1, facts.pool_tokens // context)
    limit = max(1, min(facts.slots, pool_rows))
    base_ms = decode_ms(model, 0, 0)
    row_ms = decode_ms(model, 1, context) - base_ms
    numbers = f"a step takes {base_ms:.2f} + {row_ms:.4f} x B ms at {context} tokens of context"
    held = f"slots hold {facts.slots}, the pool {pool_rows}"
    if facts.tpot_target_ms is None:
        return Decision(limit, f"batch cap = {limit} rows: no TPOT target is set; {numbers}; {held}")
    fitting = largest_batch_within(model, context, limit, facts.tpot_target_ms)
    if fitting == 0:
        one_ms = _step_ms(model, 1, context)
        return Decision(
            limit,
            f"batch cap = {limit} rows: one row alone takes {one_ms:.2f} ms and misses the TPOT target "
            f"{facts.tpot_target_ms:.2f} ms, so that a smaller batch would gain nothing; {numbers}; {held}",
        )
    fitting_ms = _step_ms(model, fitting, context)
    # A hyperbola never falls: its last batch is its best. Only a model that bends has to be searched.
    is_hyperbola = isclose(fitting_ms, base_ms + fitting * row_ms, rel_tol=_EQUAL_RATIO)
    value = fitting if is_hyperbola else _largest_of_the_best(model, context, fitting)
    half = f"{base_ms / row_ms:.0f}" if row_ms > 0 else "any batch"
    return Decision(
        value,
        f"batch cap = {value} rows: {numbers}, so {fitting} stay within the TPOT target "
        f"{facts.tpot_target_ms:.2f} ms ({_step_ms(model, value, context):.2f} ms at the cap); half of the "
        f"greatest throughput is had at {half}; {held}",
    )


def _largest_of_the_best(model: StepModel, context_tokens: int, most_rows: int) -> int:
    throughputs = [
        rows / max(_step_ms(model, rows, context_tokens), _LEAST_STEP_MS) for rows in range(1, most_rows + 1)
    ]
    good_enough = max(throughputs) * (1.0 - _EQUAL_RATIO)
    return max(rows for rows, each in enumerate(throughputs, start=1) if each >= good_enough)


def largest_batch_within(model: StepModel, context_tokens: int, limit: int, target_ms: float) -> int:
    """Rows, at most `limit`, whose step is within the target; 0 where not even one is. By bisection."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if _step_ms(model, middle, context_tokens) <= target_ms:
            low = middle
        else:
            high = middle - 1
    return low


def _step_ms(model: StepModel, rows: int, context_tokens: int) -> float:
    return decode_ms(model, rows, rows * context_tokens)
