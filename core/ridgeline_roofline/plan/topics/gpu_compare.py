"""How much faster one GPU is than another: by compute, by bandwidth, and by what fits beside the weights.

compute-bound (prefill)      ratio of peaks
bandwidth-bound (small batch)  ratio of bandwidths
capacity-bound (large batch)   both run the batch that their memory holds: ratio of tokens/s at that batch
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.step.residence import held_sequences
from ridgeline_roofline.units import Unit, show


def _held_sequences(inputs: PlanInputs, gpu: Gpu) -> int:
    usable = inputs.extras["usable"]
    return held_sequences(
        inputs.model, gpu, inputs.layout, inputs.formats, inputs.context_tokens, usable=usable
    )


def _rates(inputs: PlanInputs, gpu: Gpu, rows: int) -> tuple[float, float, float]:
    """(prefill tokens/s, tokens/s of one sequence alone, tokens/s at `rows`)."""
    model = inputs.step_model(gpu=gpu)
    prefill = inputs.prompt_tokens / model.step_s(prompt_batch(inputs.prompt_tokens))
    alone = 1 / model.step_s(decode_batch(1, inputs.context_tokens))
    full = rows / model.step_s(decode_batch(rows, inputs.context_tokens)) if rows > 0 else 0.0
    return prefill, alone, full


def _answer(inputs: PlanInputs) -> Plan:
    if len(inputs.gpus) < 2:
        raise SettingsError(
            "gpu is given once: give it twice, for example --gpu h100-sxm --gpu b200", param="gpu"
        )
    base, other = inputs.gpus[0], inputs.gpus[1]
    dtype = inputs.formats.activations
    held = [_held_sequences(inputs, gpu) for gpu in (base, other)]
    if held[0] < 1:
        raise SettingsError(
            f"tp={inputs.layout.tp}: on {base.gpu_id} nothing is left for KV beside the weights: give a larger tp",
            param="tp",
        )
    rates = [_rates(inputs, gpu, rows) for gpu, rows in zip((base, other), held, strict=True)]
    same = [_rates(inputs, gpu, held[0])[2] for gpu in (base, other)]
    peaks = [gpu.flops_per_s(dtype) for gpu in (base, other)]
    compute = peaks[1] / peaks[0]
    bandwidth = other.bandwidth_bytes_per_s / base.bandwidth_bytes_per_s
    capacity = rates[1][2] / rates[0][2]
    answers = (
        Answer(
            "compute-bound speed-up",
            compute,
            Unit.RATIO,
            f"{show(peaks[1], Unit.FLOP_PER_S)} / {show(peaks[0], Unit.FLOP_PER_S)} in {dtype}",
        ),
        Answer(
            "bandwidth-bound speed-up",
            bandwidth,
            Unit.RATIO,
            f"{show(other.bandwidth_bytes_per_s, Unit.BYTES_PER_S)} "
            f"/ {show(base.bandwidth_bytes_per_s, Unit.BYTES_PER_S)}",
        ),
        Answer(
            "sequences on the first", held[0], Unit.SEQUENCES, f"memory beside the weights on {inputs.layout}"
        ),
        Answer("sequences on the second", held[1], Unit.SEQUENCES, f"at {inputs.context_tokens} tokens each"),
        Answer(
            "capacity-bound speed-up", capacity, Unit.RATIO, "tokens/s, each with the batch that it holds"
        ),
        Answer("of it at equal batch", same[1] / same[0], Unit.RATIO, f"both with {held[0]} sequences"),
        Answer(
            "of it by the larger batch",
            capacity / (same[1] / same[0]),
            Unit.RATIO,
            "what the extra memory adds",
        ),
        Answer(
            "price ratio",
            other.usd_per_s.value / base.usd_per_s.value,
            Unit.RATIO,
            "the second pays below this speed-up only by latency",
        ),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (gpu.gpu_id, *rate, count) for gpu, rate, count in zip((base, other), rates, held, strict=True)
    )
    table = Table(
        f"On {inputs.layout}",
        ("gpu", "prefill", "one sequence", "full batch", "sequences"),
        (Unit.TEXT, Unit.TOKENS_PER_S, Unit.TOKENS_PER_S, Unit.TOKENS_PER_S, Unit.SEQUENCES),
        rows,
    )
    return Plan(
        answers,
        breaks_when=(
            "kernels of the newer GPU are not tuned yet: measured "
            "speed-up below all three ratios; `ridgeline calibrate`",
            "the TPOT target caps the batch before memory does: `ridgeline plan goodput` for each of them",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="gpu-compare",
    question="How much faster is one GPU than another, by compute, by bandwidth and by capacity?",
    source="first principles: each regime is a ratio of what limits it",
    uses=("model", "gpu", "tp", "weights", "kv", "context", "prompt"),
    answer=_answer,
    defaults={"gpu": "h100-sxm,b200", "tp": "4", "context": "4k"},
    extras=(Extra("usable", Unit.RATIO, "90%", "share of the memory that may be used", PART),),
)
