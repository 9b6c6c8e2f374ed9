"""What continuous batching gains over static, and how much batch work idle replicas can do on the side.

static: a batch lasts as long as its longest output; continuous: a slot is refilled when its output ends
gain = expected longest of B outputs / mean output
idle time = (1 - utilisation) of each replica; filled with batch work at the batch that the TPOT target leaves
"""

from math import exp, log
from statistics import NormalDist

from ridgeline_roofline.decisions.batching_gain import continuous_gain
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.plan.topics.crossover import crossover_rows
from ridgeline_roofline.serving import Workload, balanced_step_s, largest_count, memory_rows
from ridgeline_roofline.units import Unit, show

_QUANTILES = 200
_BATCHES = (1, 4, 16, 64, 256)


def lengths(mean: float, cv: float) -> tuple[int, ...]:
    """Output lengths of equal probability: a log-normal by its mean and its standard deviation / mean."""
    variance = log(1 + cv * cv)
    middle = log(mean) - variance / 2
    normal = NormalDist()
    steps = ((n + 0.5) / _QUANTILES for n in range(_QUANTILES))
    return tuple(max(1, round(exp(middle + variance**0.5 * normal.inv_cdf(p)))) for p in steps)


def _answer(inputs: PlanInputs) -> Plan:
    extras, model = inputs.extras, inputs.step_model()
    outputs = lengths(inputs.output_tokens, extras["cv"])
    gain = continuous_gain(outputs, batch=inputs.batch)
    work = Workload(inputs.prompt_tokens, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s)
    held = memory_rows(model, work)
    busy = largest_count(
        lambda n: balanced_step_s(model, work, n, efficiency=extras["efficiency"]) <= inputs.tpot_s, held
    )
    own = int(busy * extras["utilisation"])
    spare = busy - own
    step_s = balanced_step_s(model, work, max(busy, 1), efficiency=extras["efficiency"])
    per_s = spare / (inputs.output_tokens * step_s)
    budget = crossover_rows(inputs, inputs.formats.weights, inputs.formats.activations)
    answers = (
        Answer("gain of continuous batching", gain.value, Unit.RATIO, gain.derivation),
        Answer(
            "token budget on the roofline",
            budget,
            Unit.TOKENS,
            "rows a step at which memory and compute balance",
        ),
        Answer(
            "rows within TPOT",
            busy,
            Unit.SEQUENCES,
            f"step in balance at most {show(inputs.tpot_s, Unit.SECONDS)}",
        ),
        Answer("rows of interactive work", own, Unit.SEQUENCES, f"{extras['utilisation']:.0%} on average"),
        Answer("rows left for batch work", spare, Unit.SEQUENCES, "without missing the target"),
        Answer(
            "batch requests a second",
            per_s,
            Unit.REQUESTS_PER_S,
            f"{spare} / ({inputs.output_tokens} x {show(step_s, Unit.SECONDS)})",
        ),
        Answer("batch requests a day", per_s * 86400, Unit.REQUESTS, "that idle time pays for, one replica"),
        Answer(
            "worth a day",
            spare / max(busy, 1) * inputs.layout.gpus * inputs.gpu.usd_per_s.value * 86400,
            Unit.USD,
            "GPU time that would be idle",
        ),
    )
    rows: list[tuple[Value, ...]] = [(n, continuous_gain(outputs, batch=n).value) for n in _BATCHES]
    table = Table(
        "Gain by batch", ("batch", "continuous / static"), (Unit.SEQUENCES, Unit.RATIO), tuple(rows)
    )
    return Plan(
        answers,
        breaks_when=(
            "outputs are nearly equal in length: nothing is gained; see the histogram of output tokens",
            "interactive load comes in bursts: batch rows must give way at once; see preemptions of the batch class",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="batch-idle",
    question="What does continuous batching gain here, and how much batch work fits into idle time?",
    source="Yu et al., Orca, 2022, for the scheduling; expected maximum by order statistics",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "prompt", "output", "tpot"),
    answer=_answer,
    defaults={"tp": "8", "prompt": "1k"},
    extras=(
        Extra("cv", Unit.RATIO, "1", "standard deviation / mean of output lengths"),
        Extra(
            "utilisation",
            Unit.RATIO,
            "40%",
            "share of the rows that interactive work takes on average",
            SHARE,
        ),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
    ),
)
