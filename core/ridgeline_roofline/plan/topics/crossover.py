"""From how many rows a step is bound by compute: the same number as batch, and as prompt length.

    bytes of the weights / bandwidth = 2 x rows x active parameters / peak
    rows = ridge x bytes a weight / 2 x (parameters read / active parameters)

FP8 halves the bytes and doubles the peak: the crossover stays. 4-bit weights under BF16 arithmetic only halve
the bytes again. For a MoE that reads all experts the batch must be larger by total / active.
"""

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_FORMATS = (
    ("bf16", Dtype.BF16, Dtype.BF16),
    ("fp8", Dtype.FP8, Dtype.FP8),
    ("4-bit weights, bf16 arithmetic", Dtype.INT4, Dtype.BF16),
    ("nvfp4", Dtype.NVFP4, Dtype.NVFP4),
)


def crossover_rows(
    inputs: PlanInputs, weights: Dtype, arithmetic: Dtype, *, bits: float | None = None
) -> float:
    """Rows from which reading the weights takes less time than multiplying with them."""
    stored = weights.bytes_per_element if bits is None else bits / 8
    spec = inputs.model
    return (
        inputs.gpu.ridge_flop_per_byte(arithmetic)
        * stored
        / 2
        * spec.matrix_parameters
        / spec.active_parameters
    )


def _answer(inputs: PlanInputs) -> Plan:
    spec, gpu, formats = inputs.model, inputs.gpu, inputs.formats
    ridge = gpu.ridge_flop_per_byte(formats.activations)
    rows = crossover_rows(inputs, formats.weights, formats.activations)
    spread = spec.matrix_parameters / spec.active_parameters
    mfu, prompt = inputs.extras["mfu"], inputs.prompt_tokens
    step = inputs.step_model().step(prompt_batch(prompt))
    flops = step.total("flops")
    peak = gpu.flops_per_s(formats.activations)
    table_rows: list[tuple[Value, ...]] = [
        (name, gpu.ridge_flop_per_byte(arithmetic), crossover_rows(inputs, weights, arithmetic))
        for name, weights, arithmetic in _FORMATS
    ]
    four_bits = crossover_rows(inputs, Dtype.INT4, Dtype.BF16, bits=4.0)
    answers = (
        Answer(
            "ridge",
            ridge,
            Unit.FLOP_PER_BYTE,
            f"{show(peak, Unit.FLOP_PER_S)} / {show(gpu.bandwidth_bytes_per_s, Unit.BYTES_PER_S)}",
        ),
        Answer(
            "crossover batch",
            rows,
            Unit.SEQUENCES,
            f"{ridge:.1f} x {formats.weights.bytes_per_element:g} bytes a weight / 2 x {spread:.3g} (read / active)",
        ),
        Answer(
            "crossover prompt",
            rows,
            Unit.TOKENS,
            "the same: a row is a row, whether it is a sequence's next token or a token of one prompt",
        ),
        Answer(
            "crossover batch, 4-bit weights",
            four_bits,
            Unit.SEQUENCES,
            f"BF16 arithmetic: {gpu.ridge_flop_per_byte(Dtype.BF16):.1f} "
            f"x 0.5 bytes / 2 x {spread:.3g}, scales left out",
        ),
        Answer("FLOPs of the prompt", flops, Unit.FLOP, f"{prompt} tokens, one of {inputs.layout.gpus} GPUs"),
        Answer(
            "TTFT at the stated MFU",
            max(flops / (peak * mfu), step.seconds),
            Unit.SECONDS,
            f"max({show(flops, Unit.FLOP)} / ({show(peak, Unit.FLOP_PER_S)} x {mfu:.0%}), the step's floor "
            f"{show(step.seconds, Unit.SECONDS)})",
        ),
        Answer(
            "prompt is bound by",
            "compute" if prompt > rows else "memory",
            Unit.TEXT,
            f"{prompt} tokens against {rows:.0f}",
        ),
    )
    table = Table(
        f"By format on {gpu.gpu_id}",
        ("format", "ridge", "crossover rows"),
        (Unit.TEXT, Unit.FLOP_PER_BYTE, Unit.SEQUENCES),
        tuple(table_rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "KV reads are a large part of the step: attention stays "
            "memory-bound at any batch; see `ridgeline plan attention`",
            "kernels reach different shares of both peaks: calibrate, and compare measured steps around the crossover",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="crossover",
    question="From which batch, or prompt length, does compute limit a step instead of memory?",
    source="Williams, Waterman, Patterson, Roofline, 2009; the ridge set equal to the intensity of a matrix product",
    uses=("model", "gpu", "tp", "weights", "prompt"),
    answer=_answer,
    defaults={"tp": "8", "prompt": "2k"},
    extras=(Extra("mfu", Unit.RATIO, "50%", "share of the peak that prefill reaches", PART),),
)
