"""Throughput over batch: step = a + b B, a hyperbola with a knee, and the cap that memory sets.

tokens/s(B) = B / (a + b B), at most 1 / b; half of it at B = a / b
the knee, where one more sequence adds less than it slows the others (slope of log throughput = 1 - share):
    B = (a / b) x share / (1 - share) gives `share` of the limit
a and b by least squares over steps at several batches, or from a measured pair
"""

from dataclasses import replace

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Value
from ridgeline_roofline.plan.bounds import CHANCE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.plan.topics.memory import TOPIC as MEMORY
from ridgeline_roofline.plan.topics.memory import ledger, rank_kv_bytes
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.timing import StepTime
from ridgeline_roofline.units import Unit, parse_quantity, show

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_FITTED = (1, 8, 16, 32, 64)


def line_through(points: dict[int, float]) -> tuple[float, float]:
    """(a, b) of seconds = a + b x batch, by least squares."""
    n = len(points)
    mean_x, mean_y = sum(points) / n, sum(points.values()) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points.items()) / sum(
        (x - mean_x) ** 2 for x in points
    )
    return mean_y - slope * mean_x, slope


def pool_cap(inputs: PlanInputs) -> int:
    """Sequences that the memory beside weights and working space holds."""
    defaults = {extra.name for extra in MEMORY.extras}
    sized = replace(
        inputs,
        extras={
            **{
                extra.name: parse_quantity(extra.default, extra.unit, name=extra.name)
                for extra in MEMORY.extras
            },
            **{name: value for name, value in inputs.extras.items() if name in defaults},
        },
    )
    left = inputs.gpu.memory_bytes * sized.extras["usable"] - sum(line.size_bytes for line in ledger(sized))
    return inputs.layout.dp * max(0, int(left / rank_kv_bytes(sized, inputs.context_tokens)))


def _ranked(step: StepTime) -> tuple[tuple[Value, ...], ...]:
    rows: list[tuple[Value, ...]] = []
    for each in sorted(step.ops, key=lambda found: found.op.intensity_flop_per_byte):
        if each.op.memory_bytes == 0:
            continue
        fix = {
            "elementwise": "fusion: its bytes are activations of its neighbours",
            "attention": "the architecture (KV heads, latent, window) or fewer KV bits",
            "matmul": "a larger batch, or fewer weight bits",
        }.get(each.op.kind.value, "")
        rows.append((each.op.name, each.op.intensity_flop_per_byte, each.bound, each.seconds, fix))
    return tuple(rows)


def _answer(inputs: PlanInputs) -> Plan:
    model, context = inputs.step_model(), inputs.context_tokens
    points = {n: model.step_s(decode_batch(n, context)) for n in _FITTED}
    base, slope = line_through(points)
    if inputs.extras["a"] > 0 and inputs.extras["b"] > 0:
        base, slope = inputs.extras["a"], inputs.extras["b"]
    share = inputs.extras["share"]
    knee = base / slope * share / (1 - share)
    by_memory = pool_cap(inputs)
    cap = min(int(knee), by_memory) if by_memory else 0
    limit = 1 / slope
    step = model.step(decode_batch(inputs.batch, context))
    answers = (
        Answer(
            "a",
            base,
            Unit.SECONDS,
            f"least squares over batches {', '.join(map(str, _FITTED))}: the part that all share",
        ),
        Answer("b", slope, Unit.SECONDS, "a sequence more: its KV reads and its rows"),
        Answer("limit", limit, Unit.TOKENS_PER_S, f"1 / b = 1 / {show(slope, Unit.SECONDS)}"),
        Answer(
            "half of the limit at",
            base / slope,
            Unit.SEQUENCES,
            f"a / b = {show(base, Unit.SECONDS)} / {show(slope, Unit.SECONDS)}",
        ),
        Answer(
            "knee", knee, Unit.SEQUENCES, f"a / b x {share:g} / (1 - {share:g}): {share:.0%} of the limit"
        ),
        Answer(
            "tokens a second at the knee",
            knee / (base + slope * knee),
            Unit.TOKENS_PER_S,
            "knee / (a + b x knee)",
        ),
        Answer("cap by memory", by_memory, Unit.SEQUENCES, f"KV pool / KV of {context} tokens"),
        Answer("batch cap", cap, Unit.SEQUENCES, "the smaller of knee and memory"),
        Answer(
            "tokens a second at the cap", cap / (base + slope * cap), Unit.TOKENS_PER_S, "cap / (a + b x cap)"
        ),
    )
    table = Table(
        f"Operators at batch {inputs.batch}, lowest intensity first",
        ("operator", "intensity", "bound by", "time", "what can help"),
        (Unit.TEXT, Unit.FLOP_PER_BYTE, Unit.TEXT, Unit.SECONDS, Unit.TEXT),
        _ranked(step),
    )
    curve = Curve(
        "throughput over batch",
        "batch",
        "tokens/s",
        _BATCHES,
        {
            "roofline": [n / model.step_s(decode_batch(n, context)) for n in _BATCHES],
            "a + b B": [n / (base + slope * n) for n in _BATCHES],
        },
    )
    return Plan(
        answers,
        breaks_when=(
            "the batch passes the compute crossover: the step bends upwards and one line no longer fits; see crossover",
            "contexts drift longer: b grows with them; the engine refits a and b from its own steps and exports both",
        ),
        tables=(table,),
        curve=curve,
    )


TOPIC = Topic(
    name="batch-knee",
    question="At which batch does throughput stop being worth its latency, and what does memory allow?",
    source="first principles: least squares of a line, and the hyperbola that it gives",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"tp": "8", "context": "4k"},
    extras=(
        Extra("share", Unit.RATIO, "80%", "share of the limit that the knee stands for", CHANCE),
        Extra("a", Unit.SECONDS, "0s", "measured fixed part; 0s: from the roofline"),
        Extra("b", Unit.SECONDS, "0s", "measured part of a sequence"),
    ),
)
