"""Joules a token by batch: power between idle and the limit, times the time of a token.

power = idle + (limit - idle) x (memory x share of bandwidth used + compute x share of peak arithmetic used),
        at most the limit
J/token = GPUs x power x step time / batch
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Total
from ridgeline_roofline.plan.bounds import SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.timing import StepTime
from ridgeline_roofline.units import Unit, show

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _busy(inputs: PlanInputs, step: StepTime) -> float:
    gpu = inputs.gpu
    memory = (step.total("weight_bytes") + step.total("kv_bytes")) / gpu.bandwidth_bytes_per_s / step.seconds
    compute = step.total("flops") / gpu.flops_per_s(inputs.formats.activations) / step.seconds
    return inputs.extras["memory"] * memory + inputs.extras["compute"] * compute


def _watts(inputs: PlanInputs, step: StepTime) -> float:
    idle, limit = inputs.gpu.idle_power.value, inputs.gpu.tdp.value
    return min(limit, idle + (limit - idle) * _busy(inputs, step))


def _answer(inputs: PlanInputs) -> Plan:
    model, gpus, overhead = inputs.step_model(), inputs.layout.gpus, inputs.extras["overhead"]
    steps = {
        rows: model.step(decode_batch(rows, inputs.context_tokens)) for rows in (*_BATCHES, inputs.batch)
    }

    def joules(rows: int) -> float:
        return gpus * _watts(inputs, steps[rows]) * steps[rows].seconds / rows

    step, watts = steps[inputs.batch], _watts(inputs, steps[inputs.batch])
    gpu_j = joules(inputs.batch)
    rest_j = gpu_j * overhead
    idle, limit = inputs.gpu.idle_power.value, inputs.gpu.tdp.value
    answers = (
        Answer("step", step.seconds, Unit.SECONDS, f"{inputs.batch} rows at {inputs.context_tokens} tokens"),
        Answer(
            "busy",
            _busy(inputs, step),
            Unit.RATIO,
            f"{inputs.extras['memory']:.0%} x bandwidth in use + {inputs.extras['compute']:.0%} x arithmetic in use",
        ),
        Answer(
            "power of a GPU",
            watts,
            Unit.WATTS,
            f"min({limit:.0f}, {idle:.0f} + ({limit:.0f} - {idle:.0f}) x busy) W",
        ),
        Answer(
            "GPU energy a token",
            gpu_j,
            Unit.JOULES_PER_TOKEN,
            f"{gpus} x {watts:.0f} W x {show(step.seconds, Unit.SECONDS)} / {inputs.batch}",
        ),
        Answer("host and cooling a token", rest_j, Unit.JOULES_PER_TOKEN, f"{overhead:.0%} on top"),
        Answer("energy a token", gpu_j + rest_j, Unit.JOULES_PER_TOKEN, "sum of both"),
        Answer(
            "electricity a million tokens",
            (gpu_j + rest_j) * 1e6 / 3.6e6 * inputs.extras["kwh"],
            Unit.USD,
            f"{(gpu_j + rest_j) / 3.6:.4g} kWh x {inputs.extras['kwh']:.2f} USD",
        ),
    )
    table = Table(
        "By batch",
        ("batch", "step", "power of a GPU", "GPU energy a token"),
        (Unit.SEQUENCES, Unit.SECONDS, Unit.WATTS, Unit.JOULES_PER_TOKEN),
        tuple((rows, steps[rows].seconds, _watts(inputs, steps[rows]), joules(rows)) for rows in _BATCHES),
    )
    curve = Curve(
        "energy over batch",
        "batch",
        "J/token",
        _BATCHES,
        {"GPU": [joules(n) for n in _BATCHES]},
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "the GPU throttles below its limit: NVML's power and clocks show it; the export uses NVML, not this model",
            "the two shares are assumptions: measure power under a copy and under a matmul, and set memory and compute",
        ),
        tables=(table,),
        curve=curve,
        totals=(Total("energy a token", ("GPU energy a token", "host and cooling a token")),),
    )


TOPIC = Topic(
    name="energy",
    question="How many joules does a token cost, and what does the batch do to it?",
    source="first principles, with power linear in use between idle and limit (Barroso and Hoelzle, 2007)",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"tp": "8"},
    extras=(
        Extra("overhead", Unit.RATIO, "40%", "host, network and cooling, as a share of the GPUs"),
        Extra(
            "memory",
            Unit.RATIO,
            "50%",
            "of the power above idle, drawn by memory at its full bandwidth",
            SHARE,
        ),
        Extra(
            "compute", Unit.RATIO, "90%", "of the power above idle, drawn by arithmetic at its peak", SHARE
        ),
        Extra("kwh", Unit.USD, "0.10USD", "price of a kWh"),
    ),
)
