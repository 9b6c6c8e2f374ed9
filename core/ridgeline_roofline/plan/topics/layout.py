"""Ways to lay one model over its GPUs: what fits, what a token waits for, and what is copied.

all-reduces a token = 2 a layer, whatever the number of stages
KV copies = ranks / KV heads once the heads run out (MLA: every rank holds the whole latent)
DP attention removes the copies: each rank keeps its own sequences, experts stay divided over all
a fault takes what shares a layout with it: the blast radius
"""

from dataclasses import replace

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.collectives import CollectiveKind
from ridgeline_roofline.step.layout import Layout, check_layout, kv_copies
from ridgeline_roofline.step.residence import sequence_bytes, weight_bytes
from ridgeline_roofline.units import Unit, show

_DTYPES = (Dtype.BF16, Dtype.FP8, Dtype.NVFP4)


def candidates(inputs: PlanInputs) -> tuple[Layout, ...]:
    """Layouts of the fleet's GPUs and of twice as many: TP, TP x PP, and DP attention for a MoE."""
    found: list[Layout] = []
    for gpus in (inputs.fleet_gpus, 2 * inputs.fleet_gpus):
        for pp in (1, 2, 4):
            found.append(Layout(tp=gpus // pp, pp=pp))
        if inputs.model.is_moe:
            found.append(Layout(tp=1, ep=gpus, dp=gpus))
    return tuple(layout for layout in found if layout.tp >= 1 and _possible(inputs, layout))


def _possible(inputs: PlanInputs, layout: Layout) -> bool:
    try:
        check_layout(inputs.model, layout)
    except SettingsError:
        return False
    return True


def _kv_bytes(inputs: PlanInputs, layout: Layout) -> float:
    """KV of the whole batch on one GPU."""
    one = sequence_bytes(inputs.model, layout, inputs.formats, inputs.context_tokens)
    return one * inputs.batch / layout.dp


def _fits(inputs: PlanInputs, layout: Layout, dtype: Dtype) -> bool:
    room = inputs.gpu.memory_bytes * inputs.extras["usable"]
    weights = weight_bytes(inputs.model, layout, replace(inputs.formats, weights=dtype))
    return weights + _kv_bytes(inputs, layout) <= room


def _formats(inputs: PlanInputs, layout: Layout) -> str:
    return " ".join(dtype.value for dtype in _DTYPES if _fits(inputs, layout, dtype)) or "none"


def _row(inputs: PlanInputs, layout: Layout) -> tuple[Value, ...]:
    step_s = inputs.step_model(layout=layout).step_s(decode_batch(inputs.batch, inputs.context_tokens))
    return (
        str(layout),
        layout.gpus,
        _formats(inputs, layout),
        step_s,
        inputs.batch / step_s / layout.gpus,
        _kv_bytes(inputs, layout),
        kv_copies(inputs.model, layout),
        layout.gpus,
    )


def _answer(inputs: PlanInputs) -> Plan:
    layout, spec, gpu = inputs.layout, inputs.model, inputs.gpu
    batch = decode_batch(inputs.batch, inputs.context_tokens)
    step = inputs.step_model().step(batch)
    reduces = sum(each.op.launches for each in step.ops if each.op.collective is CollectiveKind.ALL_REDUCE)
    weights = spec.parameters * inputs.formats.weights.bytes_per_element
    there = gpu.memory_bytes * layout.gpus
    widest = [dtype for dtype in _DTYPES if _fits(inputs, layout, dtype)]
    copies, kv = kv_copies(spec, layout), _kv_bytes(inputs, layout)
    pure = kv / copies
    domain, fabric = int(gpu.domain_gpus.value), inputs.fabric
    prompt_kv = spec.kv_bytes(inputs.prompt_tokens, inputs.formats.kv)
    options = candidates(inputs)
    fitting = [option for option in options if _fits(inputs, option, inputs.formats.weights)]
    best = min(fitting, key=lambda each: inputs.step_model(layout=each).step_s(batch), default=None)
    answers = (
        Answer("weights", weights, Unit.BYTES, f"{spec.parameters:,} in {inputs.formats.weights}"),
        Answer("memory", there, Unit.BYTES, f"{layout.gpus} x {show(gpu.memory_bytes, Unit.BYTES)}"),
        Answer(
            "precision that fits",
            widest[0].value if widest else "none",
            Unit.TEXT,
            f"the widest of {' '.join(_DTYPES)} whose weights, and KV of {inputs.batch} sequences, fit {layout}",
        ),
        Answer(
            "all-reduces a token",
            reduces,
            Unit.COUNT,
            f"2 in each of {spec.layers} layers that have both parts",
        ),
        Answer(
            "step",
            step.seconds,
            Unit.SECONDS,
            f"{layout}, {inputs.batch} rows at {inputs.context_tokens} tokens",
        ),
        Answer("KV a GPU", kv, Unit.BYTES, f"of all {inputs.batch} sequences, copies included"),
        Answer("KV copies", copies, Unit.RATIO, "ranks that hold the same KV head; 1: none"),
        Answer("KV copied", kv - pure, Unit.BYTES, f"on each GPU: {copies:g} holds of what one would need"),
        Answer(
            "copies, time a step",
            (kv - pure) / gpu.bandwidth_bytes_per_s,
            Unit.SECONDS,
            f"{show(kv - pure, Unit.BYTES)} read for nothing / {show(gpu.bandwidth_bytes_per_s, Unit.BYTES_PER_S)}",
        ),
        Answer(
            "copies, money",
            (kv - pure) / gpu.memory_bytes * layout.gpus * gpu.usd_per_s.value,
            Unit.USD_PER_S,
            f"{(kv - pure) / gpu.memory_bytes:.2%} of the memory of {layout.gpus} GPUs, at their price",
        ),
        Answer("fast domain", domain, Unit.COUNT, f"GPUs that {gpu.gpu_id} reaches over its fast link"),
        Answer(
            "leaves the fast domain",
            "yes" if layout.tp * layout.dp > domain else "no",
            Unit.TEXT,
            f"TP x DP = {layout.tp * layout.dp} against {domain}: all-reduce and expert traffic stay inside or not",
        ),
        Answer(
            "memory of the fast domain",
            domain * gpu.memory_bytes,
            Unit.BYTES,
            f"{domain} x {show(gpu.memory_bytes, Unit.BYTES)}, against {show(weights, Unit.BYTES)} of weights",
        ),
        Answer(
            "hand over a prompt's KV inside",
            prompt_kv / (layout.gpus * fabric.fast.bytes_per_s) + fabric.fast.latency_s,
            Unit.SECONDS,
            f"{show(prompt_kv, Unit.BYTES)} / ({layout.gpus} x {show(fabric.fast.bytes_per_s, Unit.BYTES_PER_S)}): "
            f"prefill and decode within {domain} GPUs",
        ),
        Answer(
            "hand over a prompt's KV beyond",
            prompt_kv / (layout.gpus * fabric.wide.bytes_per_s) + fabric.wide.latency_s,
            Unit.SECONDS,
            f"{show(prompt_kv, Unit.BYTES)} / ({layout.gpus} x {show(fabric.wide.bytes_per_s, Unit.BYTES_PER_S)})",
        ),
        Answer("blast radius", layout.gpus, Unit.COUNT, "GPUs that stop when one of them fails"),
        Answer(
            "fastest that fits",
            str(best) if best else "none",
            Unit.TEXT,
            "shortest step of the table's layouts",
        ),
    )
    table = Table(
        f"Layouts of {inputs.fleet_gpus} and {2 * inputs.fleet_gpus} GPUs, steps in {inputs.formats.weights}",
        ("layout", "GPUs", "formats that fit", "step", "tokens/s a GPU", "KV a GPU", "copies", "blast radius"),
        (
            Unit.TEXT, Unit.COUNT, Unit.TEXT, Unit.SECONDS, Unit.TOKENS_PER_S, Unit.BYTES, Unit.RATIO, Unit.COUNT,
        ),
        tuple(_row(inputs, option) for option in options),
    )  # fmt: skip
    return Plan(
        answers,
        breaks_when=(
            "DP ranks hold unequal loads: the longest sets the step of all; see step time and rows by rank",
            "a fabric is shared with other tenants: its latency is not the catalogue's; measure one all-reduce",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="layout",
    question="Which layout fits a model on these GPUs, and what does each cost a token?",
    source="Shoeybi et al., Megatron-LM, 2019; DeepSeek-V3, 2024, section 3.4, for DP attention",
    uses=(
        "model",
        "gpu",
        "gpus",
        "tp",
        "pp",
        "ep",
        "dp",
        "weights",
        "kv",
        "batch",
        "context",
        "prompt",
        "link",
    ),
    answer=_answer,
    defaults={
        "model": "llama-3.1-405b",
        "tp": "8",
        "gpus": "8",
        "weights": "fp8",
        "batch": "16",
        "context": "4k",
    },
    extras=(Extra("usable", Unit.RATIO, "90%", "share of the memory for weights and KV", PART),),
)
