"""Model bandwidth utilisation with both operands defined, and six ways to get it wrong.

MBU = (active weights + KV of the resident context, both as really read in a step) / wall time of the step
      / bandwidth of the device
"""

from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total
from ridgeline_roofline.plan.bounds import PART, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.units import Unit, show


def _answer(inputs: PlanInputs) -> Plan:
    model, spec, gpu = inputs.step_model(), inputs.model, inputs.gpu
    step = model.step(decode_batch(inputs.batch, inputs.context_tokens))
    wall_s = inputs.extras["step"]
    weights, kv = step.total("weight_bytes"), step.total("kv_bytes")
    read, peak, gpus = weights + kv, gpu.bandwidth_bytes_per_s, inputs.layout.gpus
    held = spec.parameters * inputs.formats.weights.bytes_per_element
    matrices = spec.matrix_parameters * inputs.formats.weights.bytes_per_element / gpus
    allocated = gpu.memory_bytes * inputs.extras["pool"]
    share = spec.kv_bytes(spec.context_tokens, inputs.formats.kv) * inputs.batch / gpus

    def ratio(size: float, seconds: float = wall_s, rate: float = peak) -> float:
        return size / seconds / rate

    wrong = (
        ("all parameters, embeddings too", "counts what a step never reads", ratio(held / gpus + kv)),
        ("all experts", "a batch touches some of them only", ratio(matrices + kv)),
        ("weights alone", "leaves the KV out, so it falls as the context grows", ratio(weights)),
        ("KV pool as allocated", "counts pages that nobody reads", ratio(weights + allocated)),
        ("KV of the full context window", "counts tokens that are not there", ratio(weights + share)),
        (
            "kernel time instead of wall time",
            "hides the gaps that it should show",
            ratio(read, wall_s * inputs.extras["busy"]),
        ),
    )
    table = Table(
        "Six other definitions beside it",
        ("what is counted", "what is wrong with it", "says"),
        (Unit.TEXT, Unit.TEXT, Unit.RATIO),
        wrong,
    )
    answers = (
        Answer(
            "weights read",
            weights,
            Unit.BYTES,
            f"active weights of a batch of {inputs.batch}, one of {gpus} GPUs",
        ),
        Answer(
            "KV read",
            kv,
            Unit.BYTES,
            f"{inputs.batch} x {inputs.context_tokens} resident tokens, one of {gpus} GPUs",
        ),
        Answer("bytes read", read, Unit.BYTES, "weights + KV"),
        Answer(
            "achieved bandwidth",
            read / wall_s,
            Unit.BYTES_PER_S,
            f"{show(read, Unit.BYTES)} / {show(wall_s, Unit.SECONDS)} wall time of a step",
        ),
        Answer(
            "MBU",
            ratio(read),
            Unit.RATIO,
            f"{show(read / wall_s, Unit.BYTES_PER_S)} / {show(peak, Unit.BYTES_PER_S)}",
        ),
        Answer("floor of the step", read / peak, Unit.SECONDS, "bytes read / bandwidth: MBU 1"),
        Answer(
            "time not spent reading",
            wall_s - read / peak,
            Unit.SECONDS,
            "step - floor: launches, collectives, host",
        ),
    )
    return Plan(
        answers,
        breaks_when=(
            "compute is the limit (large batches, prefill): a low MBU is then right; look at FLOPs against the peak",
            "the step model's bytes are not what kernels read (padding, KV copies): compare with DRAM counters",
            "the exported gauge is above 1: the figure of the catalogue or the step time is wrong",
        ),
        tables=(table,),
        totals=(Total("bytes read", ("weights read", "KV read")),),
    )


TOPIC = Topic(
    name="mbu",
    question="How much of the memory bandwidth does decode use, by a definition that can be checked?",
    source="first principles: bytes that a step must read, over what the memory could give",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"tp": "8", "batch": "16", "context": "4k"},
    extras=(
        Extra("step", Unit.SECONDS, "12ms", "measured wall time of a decode step", POSITIVE),
        Extra("busy", Unit.RATIO, "80%", "share of that time in which kernels ran", PART),
        Extra("pool", Unit.RATIO, "50%", "share of the memory that the KV pool takes", SHARE),
    ),
)
