"""How fast can a token come at all: the weights that must be read, and three things on top.

floor = weight bytes really read / bandwidth
      + KV bytes of the resident context / bandwidth + collectives + host and launch gaps
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.units import Unit, show

_CONTEXTS = (0, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)


def _answer(inputs: PlanInputs) -> Plan:
    model = inputs.step_model()
    step = model.step(decode_batch(inputs.batch, inputs.context_tokens))
    gpu, split = inputs.gpu, step.split
    launches = int(step.total("launches"))
    host_s = split["host"] + inputs.extras["host"] + launches * inputs.extras["launch"]
    rate = show(gpu.bandwidth_bytes_per_s, Unit.BYTES_PER_S)
    weight_bytes, kv_bytes = step.total("weight_bytes"), step.total("kv_bytes")
    compute_s = split["compute"] + split["activations"]
    total_s = split["weights"] + split["kv"] + split["collectives"] + compute_s + host_s
    answers = (
        Answer(
            "weights",
            split["weights"],
            Unit.SECONDS,
            f"{show(weight_bytes, Unit.BYTES)} read on each of {inputs.layout.gpus} GPUs / {rate}",
        ),
        Answer(
            "KV reads",
            split["kv"],
            Unit.SECONDS,
            f"{inputs.batch} x {inputs.context_tokens} tokens = {show(kv_bytes, Unit.BYTES)} a GPU / {rate}",
        ),
        Answer(
            "collectives",
            split["collectives"],
            Unit.SECONDS,
            "one GPU: none"
            if inputs.layout.gpus == 1
            else f"{inputs.layout}: messages of {inputs.batch} rows over {model.fabric.fast.link_id}",
        ),
        Answer(
            "compute beyond memory",
            compute_s,
            Unit.SECONDS,
            "arithmetic that reads do not hide; 0 when small",
        ),
        Answer(
            "host and launches",
            host_s,
            Unit.SECONDS,
            f"{show(inputs.extras['host'], Unit.SECONDS)} a step + {launches} launches x "
            f"{show(inputs.extras['launch'], Unit.SECONDS)}",
        ),
        Answer("step", total_s, Unit.SECONDS, "sum of the five lines above"),
        Answer(
            "tokens a second and sequence",
            1 / total_s,
            Unit.TOKENS_PER_S,
            f"1 / {show(total_s, Unit.SECONDS)}",
        ),
        Answer(
            "tokens a second",
            inputs.batch / total_s,
            Unit.TOKENS_PER_S,
            f"{inputs.batch} / {show(total_s, Unit.SECONDS)}",
        ),
    )
    parts = ("weights", "KV reads", "collectives", "compute beyond memory", "host and launches")
    curve = Curve(
        "step over context",
        "context (tokens)",
        "step (ms)",
        _CONTEXTS,
        {
            "step": [
                1e3 * (model.step_s(decode_batch(inputs.batch, c)) + total_s - step.seconds)
                for c in _CONTEXTS
            ]
        },
    )
    return Plan(
        answers,
        breaks_when=(
            "kernels reach less than the data sheet's bandwidth: compare ridgeline_engine_step_ms predicted and "
            "measured, and calibrate",
            "the host is slower than the device: host_ms of a step is near step_ms",
        ),
        curve=curve,
        totals=(Total("step", parts),),
    )


TOPIC = Topic(
    name="decode-floor",
    question="How many milliseconds must a decode step take, and of what?",
    source="Williams, Waterman, Patterson, Roofline, 2009; Pope et al., "
    "Efficiently Scaling Transformer Inference, 2022, section 2",
    uses=("model", "gpu", "tp", "pp", "ep", "dp", "weights", "kv", "batch", "context", "link"),
    answer=_answer,
    defaults={"batch": "1", "context": "8k", "tp": "8"},
    extras=(
        Extra("host", Unit.SECONDS, "0s", "fixed host time of a step"),
        Extra("launch", Unit.SECONDS, "0s", "gap that each kernel launch leaves; graphs make it about 0"),
    ),
)
