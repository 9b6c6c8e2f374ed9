"""The batch that serves most requests within the TPOT target: goodput, not throughput.

goodput(B) = B / (output x step(B))  while step(B) <= TPOT target and the KV pool holds B, else 0
the best B need not be the largest: from some batch on prompts make the step grow faster than the batch
beside decode, prefill chunks take their share of every step: rate x prompt tokens must be computed too
long outputs: a preemption throws away (or moves) a whole context; its price in output tokens of its neighbours
"""

from itertools import pairwise

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.plan.topics.batch_knee import pool_cap
from ridgeline_roofline.serving import Workload, balanced_step_s, largest_count
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MOST_ROWS = 4096


def _work(inputs: PlanInputs) -> Workload:
    return Workload(inputs.prompt_tokens, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s)


def _step_s(inputs: PlanInputs, rows: float) -> float:
    return balanced_step_s(inputs.step_model(), _work(inputs), rows, efficiency=inputs.extras["efficiency"])


def _requests_per_s(inputs: PlanInputs, rows: float) -> float:
    return rows / (inputs.output_tokens * _step_s(inputs, rows)) if rows else 0.0


def _best_batch(inputs: PlanInputs, most: int) -> int:
    """The batch up to `most` with the most requests a second; the smallest of equals, 0 where none is allowed.

    A coarse pass over powers of two, then ever finer ones around the best, as the rate has few peaks.
    """
    if most < 1:
        return 0
    tried = {n: _requests_per_s(inputs, n) for n in (*(n for n in _BATCHES if n < most), most)}
    while True:
        order = sorted(tried)
        at = order.index(max(order, key=lambda n: tried[n]))
        around = order[max(0, at - 1) : at + 2]
        new = {(low + high) // 2 for low, high in pairwise(around)} - tried.keys()
        if not new:
            return order[at]
        tried |= {n: _requests_per_s(inputs, n) for n in new}


def _answer(inputs: PlanInputs) -> Plan:
    model, efficiency = inputs.step_model(), inputs.extras["efficiency"]
    within, memory = (
        largest_count(lambda n: _step_s(inputs, n) <= inputs.tpot_s, _MOST_ROWS),
        pool_cap(inputs),
    )
    rows = _best_batch(inputs, min(within, memory))
    context = inputs.prompt_tokens + inputs.output_tokens / 2
    goodput = _requests_per_s(inputs, rows)
    largest = _best_batch(inputs, min(max(memory, 1), _MOST_ROWS))
    recompute_s = model.step_s(prompt_batch(context)) / efficiency
    step_s = _step_s(inputs, rows) if rows else _step_s(inputs, 1)
    answers = (
        Answer(
            "batch by TPOT",
            within,
            Unit.SEQUENCES,
            f"largest with a step of at most {show(inputs.tpot_s, Unit.SECONDS)}",
        ),
        Answer("batch by memory", memory, Unit.SEQUENCES, f"KV pool / KV of {context:.0f} tokens"),
        Answer(
            "batch for goodput",
            rows,
            Unit.SEQUENCES,
            f"most requests/s of 1 to {min(within, memory)}",
        ),
        Answer(
            "step in balance",
            step_s,
            Unit.SECONDS,
            f"{rows} rows and {rows * inputs.prompt_tokens / inputs.output_tokens:.0f} prompt tokens",
        ),
        Answer(
            "goodput",
            goodput,
            Unit.REQUESTS_PER_S,
            f"{rows} / ({inputs.output_tokens} x {show(step_s, Unit.SECONDS)})",
        ),
        Answer(
            "goodput a GPU",
            goodput / inputs.layout.gpus,
            Unit.REQUESTS_PER_S,
            f"over {inputs.layout.gpus} GPUs",
        ),
        Answer("batch for throughput", largest, Unit.SEQUENCES, "target ignored"),
        Answer("its step", _step_s(inputs, largest), Unit.SECONDS, "what each user would wait for a token"),
        Answer(
            "price of a preemption",
            recompute_s,
            Unit.SECONDS,
            f"{context:.0f} tokens computed again, while {max(rows - 1, 0)} others wait or share the step",
        ),
        Answer(
            "the same in tokens",
            recompute_s / step_s * max(rows, 1),
            Unit.TOKENS,
            "output tokens not made in that time",
        ),
    )
    found: tuple[tuple[Value, ...], ...] = tuple(
        (
            n,
            _step_s(inputs, n),
            _requests_per_s(inputs, n),
            _requests_per_s(inputs, n) if _step_s(inputs, n) <= inputs.tpot_s else 0.0,
        )
        for n in _BATCHES
    )
    table = Table(
        "By batch",
        ("batch", "step in balance", "throughput", "goodput"),
        (Unit.SEQUENCES, Unit.SECONDS, Unit.REQUESTS_PER_S, Unit.REQUESTS_PER_S),
        found,
    )
    curve = Curve(
        "requests a second over batch",
        "batch",
        "requests/s",
        _BATCHES,
        {"throughput": [float(row[2]) for row in found], "goodput": [float(row[3]) for row in found]},
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "arrivals are bursty: the balance of prompts and outputs holds on average only; see step time's p99",
            "prompts are cached: fewer of their tokens are computed; give --prompt the uncached part",
        ),
        tables=(table,),
        curve=curve,
    )


TOPIC = Topic(
    name="goodput",
    question="Which batch serves most requests within the TPOT target?",
    source="Zhong et al., DistServe, 2024, for the term; the balance of prefill and decode from first principles",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "tpot"),
    answer=_answer,
    defaults={"tp": "8"},
    extras=(Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),),
)
