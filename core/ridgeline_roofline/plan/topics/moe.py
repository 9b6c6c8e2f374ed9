"""Experts that a batch touches, the bytes that they are, and when a MoE stops being cheap.

distinct experts of a layer = E (1 - (1 - k/E)^tokens)
a MoE step costs less than a dense model of equal total size, by far at first; its dense equal in active
parameters is cheaper from the batch on at which the touched experts outweigh it
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit, show

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def expert_bytes(inputs: PlanInputs, tokens: float) -> float:
    """Of all layers: the experts that a step of `tokens` tokens reads."""
    element = inputs.formats.weights.bytes_per_element
    return sum(
        count * moe.expected_experts(tokens) * moe.expert_parameters * element
        for count, moe in inputs.model.moe_layers()
    )


def always_bytes(inputs: PlanInputs) -> float:
    """Weights that every step reads: attention, dense MLPs, routers, shared experts, output matrix."""
    spec = inputs.model
    experts = sum(count * moe.experts * moe.expert_parameters for count, moe in spec.moe_layers())
    return (spec.matrix_parameters - experts) * inputs.formats.weights.bytes_per_element


def _answer(inputs: PlanInputs) -> Plan:
    spec, element = inputs.model, inputs.formats.weights.bytes_per_element
    if not spec.is_moe:
        raise SettingsError(
            f"model={spec.model_id} has no experts: give a MoE such as deepseek-v3, gpt-oss-120b or mixtral-8x7b",
            param="model",
        )
    _, moe = next(iter(spec.moe_layers()))
    batch, always = float(inputs.batch), always_bytes(inputs)
    dense = inputs.extras["dense"] or spec.active_parameters * inputs.extras["quality"]
    dense_bytes = dense * element

    def total(tokens: float) -> float:
        return always + expert_bytes(inputs, tokens)

    beaten = next((n for n in range(1, 100_000) if total(n) > dense_bytes), None)
    rate = inputs.gpu.bandwidth_bytes_per_s * inputs.layout.gpus
    answers = (
        Answer(
            "distinct experts a layer",
            moe.expected_experts(batch),
            Unit.COUNT,
            f"{moe.experts} (1 - (1 - {moe.top_k}/{moe.experts})^{inputs.batch})",
        ),
        Answer(
            "read by every step",
            always,
            Unit.BYTES,
            "attention, dense layers, router, shared experts, output matrix",
        ),
        Answer(
            "experts read",
            expert_bytes(inputs, batch),
            Unit.BYTES,
            "distinct experts x bytes of one x layers",
        ),
        Answer("weights read", total(batch), Unit.BYTES, "sum of both"),
        Answer(
            "share of all weights",
            total(batch) / (spec.matrix_parameters * element),
            Unit.RATIO,
            "read / held",
        ),
        Answer(
            "weights' time",
            total(batch) / rate,
            Unit.SECONDS,
            f"{show(total(batch), Unit.BYTES)} / {inputs.layout.gpus} GPUs",
        ),
        Answer(
            "dense equal",
            dense,
            Unit.COUNT,
            "given" if inputs.extras["dense"] else f"{inputs.extras['quality']:g} x the active parameters",
        ),
        Answer(
            "batch where the dense equal reads less",
            float("inf") if beaten is None else beaten,
            Unit.SEQUENCES,
            f"first batch that reads more than {show(dense_bytes, Unit.BYTES)}",
        ),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (n, moe.expected_experts(n), total(n), total(n) / n) for n in _BATCHES
    )
    table = Table(
        "By batch",
        ("batch", "experts a layer", "weights read", "bytes a token"),
        (Unit.SEQUENCES, Unit.COUNT, Unit.BYTES, Unit.BYTES_PER_TOKEN),
        rows,
    )
    curve = Curve(
        "weights read",
        "batch",
        "GB",
        _BATCHES,
        {
            "this model": [total(n) / 1e9 for n in _BATCHES],
            "dense equal": [dense_bytes / 1e9] * len(_BATCHES),
        },
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "routing is not uniform: popular experts repeat and fewer are touched; use the expert counts of the engine",
            "from some hundred rows on, the dense equal is compute-bound and bytes no longer decide: see crossover",
        ),
        tables=(table,),
        curve=curve,
        totals=(Total("weights read", ("read by every step", "experts read")),),
    )


TOPIC = Topic(
    name="moe",
    question="How many experts does a batch touch, and from which batch is a dense model cheaper?",
    source="first principles: the chance that no token chose an expert",
    uses=("model", "gpu", "tp", "weights", "batch"),
    answer=_answer,
    defaults={"model": "deepseek-v3", "tp": "8", "gpu": "h200", "batch": "64"},
    extras=(
        Extra("dense", Unit.COUNT, "0", "parameters of the dense model to compare with; 0: quality x active"),
        Extra("quality", Unit.RATIO, "3", "dense parameters that are worth one active parameter", POSITIVE),
    ),
)
