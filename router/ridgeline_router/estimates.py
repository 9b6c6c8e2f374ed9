"""What a request would take on a worker, by step model. Pure."""

from collections.abc import Iterable
from statistics import median

from ridgeline_contracts.blockhash import GRANULE_TOKENS
from ridgeline_contracts.step import StepCoefficients, StepShape

from ridgeline_router.facts import Estimate, Reserved, RouteQuery, WorkerFacts

ASSUMED_STEP_MODEL = StepCoefficients(
    base_ms=20.0,
    per_row_ms=0.2,
    per_context_token_ms=1e-4,
    per_prefill_token_ms=0.2,
    per_prefill_context_ms=1e-6,
)
"""Where no worker of a pool has told its own. Only the order that it gives matters then."""


def pool_step_model(workers: Iterable[WorkerFacts]) -> StepCoefficients:
    """The median of each coefficient over a pool, whose workers have equal hardware.

    A worker that has not run yet reports a guess. Taken by itself, it would draw all requests or none; and
    one that is slower than its peers shows it by its queue.
    """
    told = [worker.load.step_model for worker in workers if worker.load.step_model is not None]
    if not told:
        return ASSUMED_STEP_MODEL
    return StepCoefficients(
        base_ms=median(each.base_ms for each in told),
        per_row_ms=median(each.per_row_ms for each in told),
        per_context_token_ms=median(each.per_context_token_ms for each in told),
        per_prefill_token_ms=median(each.per_prefill_token_ms for each in told),
        per_prefill_context_ms=median(each.per_prefill_context_ms for each in told),
    )


def estimate(
    query: RouteQuery,
    worker: WorkerFacts,
    reserved: Reserved,
    model: StepCoefficients,
    *,
    cached_tokens: int = 0,
) -> Estimate:
    """Prompts before this one, then its own, then its output at the batch that it would join.

    Its parts are floors: chunking, preemption and what arrives later are not in them.
    """
    load = worker.load
    reported = load.running + load.waiting
    rows = max(reported + reserved.unseen_requests, reserved.open_requests)
    context_tokens = load.used_blocks * GRANULE_TOKENS
    decode_ms = model.predict_ms(
        StepShape(decode_rows=rows + 1, context_tokens=context_tokens + query.prompt_tokens)
    )
    ahead_tokens = load.waiting_tokens + reserved.unseen_prompt_tokens
    own_tokens = max(1, query.prompt_tokens - cached_tokens)
    queue_ms = ahead_tokens * model.per_prefill_token_ms
    prefill_ms = model.predict_ms(
        StepShape(
            decode_rows=rows,
            context_tokens=context_tokens,
            prefill_tokens=own_tokens,
            prefill_context_tokens=own_tokens * cached_tokens + own_tokens * own_tokens // 2,
        )
    )
    ttft_ms = queue_ms + prefill_ms
    total_ms = ttft_ms + max(0, query.expected_output_tokens - 1) * decode_ms
    return Estimate(cached_tokens, queue_ms, prefill_ms, ttft_ms, total_ms)
