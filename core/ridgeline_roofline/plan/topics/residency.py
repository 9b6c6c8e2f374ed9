"""Sequences in flight by Little's law, as a fixed point: the step depends on the batch that it yields.

B = rate x output x step(B)      resident KV = B x KV of a sequence half-way through its output
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.plan.answer import Answer, Curve, Plan
from ridgeline_roofline.plan.bounds import COUNTED, PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.queueing import residents
from ridgeline_roofline.serving import Workload, balanced_step_s, memory_rows
from ridgeline_roofline.units import Unit, show

_BATCHES = tuple(2**n for n in range(13))
_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)


def _resident(inputs: PlanInputs, rate_per_s: float) -> float:
    return residents(rate_per_s, lambda rows: _step_s(inputs, rows), inputs.output_tokens)


def _step_s(inputs: PlanInputs, rows: float) -> float:
    work = Workload(inputs.prompt_tokens, inputs.output_tokens)
    return balanced_step_s(inputs.step_model(), work, rows, efficiency=inputs.extras["efficiency"])


def _answer(inputs: PlanInputs) -> Plan:
    model, work = inputs.step_model(), Workload(inputs.prompt_tokens, inputs.output_tokens)
    replicas = inputs.extras["replicas"]
    rate = inputs.rate_per_s / replicas
    held = memory_rows(model, work)
    carried = {n: n / (inputs.output_tokens * _step_s(inputs, n)) for n in {*_BATCHES, held} if 0 < n <= held}
    fullest = max(carried, key=lambda n: carried[n], default=0)
    ceiling = carried.get(fullest, 0.0)
    rows = _resident(inputs, rate)
    if rows == float("inf"):
        raise SettingsError(
            f"rate={inputs.rate_per_s:g}/s: on {replicas:g} replicas "
            "no batch keeps up, steps grow faster than they drain; "
            f"give at most {ceiling * replicas:.3g}/s or more replicas (--set replicas=...)",
            param="rate",
        )
    step_s = _step_s(inputs, rows)
    kv = inputs.model.kv_bytes(work.context_tokens, inputs.formats.kv)
    stay_s = inputs.output_tokens * step_s
    answers = (
        Answer(
            "step at that batch",
            step_s,
            Unit.SECONDS,
            f"{rows:.1f} rows, and the prompt tokens that keep them coming",
        ),
        Answer(
            "time a sequence decodes",
            stay_s,
            Unit.SECONDS,
            f"{inputs.output_tokens} x {show(step_s, Unit.SECONDS)}",
        ),
        Answer(
            "resident sequences",
            rows,
            Unit.SEQUENCES,
            f"{rate:.4g}/s a replica x {show(stay_s, Unit.SECONDS)}",
        ),
        Answer(
            "resident KV",
            rows * kv,
            Unit.BYTES,
            f"{rows:.1f} x {show(kv, Unit.BYTES)} at {work.context_tokens:.0f} tokens",
        ),
        Answer("sequences that fit", held, Unit.SEQUENCES, f"memory of {inputs.layout} beside the weights"),
        Answer("share of the pool", rows / held if held else float("inf"), Unit.RATIO, "resident / that fit"),
        Answer(
            "most that the pool carries",
            ceiling * replicas,
            Unit.REQUESTS_PER_S,
            f"{fullest} / ({inputs.output_tokens} x the step of {fullest} rows)",
        ),
    )
    rates = tuple(max(share * ceiling, 1e-9) for share in _SHARES)
    curve = Curve(
        "resident sequences over rate",
        "requests/s a replica",
        "sequences",
        rates,
        {
            "fixed point": [min(_resident(inputs, r), 4.0 * max(held, 1)) for r in rates],
            "that fit": [held] * len(rates),
        },
    )
    return Plan(
        answers,
        breaks_when=(
            "lengths have a long tail: residents swing around the mean; see the running gauge's p99 against the pool",
            "requests wait for a slot: they are in the system but not "
            "resident; see the queue gauge (Little's law checks both)",
        ),
        curve=curve,
    )


TOPIC = Topic(
    name="residency",
    question="How many sequences are in flight at a given rate, and how much KV is that?",
    source="Little, A Proof for the Queuing Formula L = lambda W, 1961",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "rate"),
    answer=_answer,
    defaults={"tp": "8", "rate": "3/s"},
    extras=(
        Extra("replicas", Unit.COUNT, "1", "replicas that share the rate", COUNTED),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
    ),
)
