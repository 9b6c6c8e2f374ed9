"""Offline work: the batch that memory allows, GPU-hours of a pass over the data, and what to cut first.

sequences = memory left for KV / KV of one at its mean length
GPU-hours = documents x (prefill + output tokens x step / sequences) x GPUs
"""

from dataclasses import replace

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import PART, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import Workload, memory_rows
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.step.residence import sequence_bytes
from ridgeline_roofline.units import Unit, show


def _sequences(inputs: PlanInputs) -> int:
    """As many as the memory of one layout holds."""
    model, work = inputs.step_model(), Workload(inputs.prompt_tokens, inputs.output_tokens)
    count = memory_rows(model, work, usable=inputs.extras["usable"])
    if count < 1:
        one = sequence_bytes(inputs.model, inputs.layout, inputs.formats, work.context_tokens)
        raise SettingsError(
            f"tp={inputs.layout.tp}: beside the weights no GPU has room for {show(one, Unit.BYTES)}, its part of one "
            "sequence: give a larger tp, smaller weights or a shorter prompt",
            param="tp",
        )
    return count


def _seconds(inputs: PlanInputs) -> tuple[float, float]:
    """(prefill, decode) seconds of one document on one layout, with the batch that fits."""
    model, rows = inputs.step_model(), _sequences(inputs)
    prefill_s = model.step_s(prompt_batch(inputs.prompt_tokens)) * (1 - inputs.extras["shared"])
    step_s = model.step_s(decode_batch(rows, inputs.prompt_tokens + inputs.output_tokens / 2))
    return prefill_s, inputs.output_tokens * step_s / rows


def _hours(inputs: PlanInputs) -> float:
    return sum(_seconds(inputs)) * inputs.extras["documents"] * inputs.layout.gpus / 3600


def _answer(inputs: PlanInputs) -> Plan:
    rows, (prefill_s, decode_s) = _sequences(inputs), _seconds(inputs)
    scale = inputs.extras["documents"] * inputs.layout.gpus / 3600
    hours = _hours(inputs)
    price = inputs.gpu.usd_per_s.value * 3600
    cuts: tuple[tuple[str, PlanInputs], ...] = (
        ("prompt by half", replace(inputs, prompt_tokens=max(1, inputs.prompt_tokens // 2))),
        ("output by half", replace(inputs, output_tokens=max(1, inputs.output_tokens // 2))),
        ("weights in fp8", replace(inputs, formats=Formats(Dtype.FP8, inputs.formats.kv, Dtype.FP8))),
        ("KV in fp8", replace(inputs, formats=replace(inputs.formats, kv=Dtype.FP8))),
        ("half of the prompt shared", replace(inputs, extras={**inputs.extras, "shared": 0.5})),
    )
    table_rows: list[tuple[Value, ...]] = [(name, _hours(cut), 1 - _hours(cut) / hours) for name, cut in cuts]
    table_rows.sort(key=lambda row: float(row[1]))
    answers = (
        Answer(
            "sequences at once",
            rows,
            Unit.SEQUENCES,
            f"what {inputs.layout.gpus} GPUs hold beside the weights",
        ),
        Answer(
            "prefill a document", prefill_s, Unit.SECONDS, f"{inputs.prompt_tokens} tokens on {inputs.layout}"
        ),
        Answer("decode a document", decode_s, Unit.SECONDS, f"{inputs.output_tokens} steps / {rows} rows"),
        Answer(
            "prefill",
            prefill_s * scale,
            Unit.COUNT,
            f"GPU-hours of {inputs.extras['documents']:,.0f} documents",
        ),
        Answer("decode", decode_s * scale, Unit.COUNT, "GPU-hours"),
        Answer("GPU-hours a pass", hours, Unit.COUNT, "prefill + decode"),
        Answer("cost of a pass", hours * price, Unit.USD, f"{hours:,.1f} x {price:.2f} USD"),
        Answer("wall time", hours / inputs.fleet_gpus * 3600, Unit.SECONDS, f"on {inputs.fleet_gpus} GPUs"),
        Answer("cut first", str(table_rows[0][0]), Unit.TEXT, "what saves most of the changes below"),
    )
    table = Table(
        "One change at a time",
        ("change", "GPU-hours", "saved"),
        (Unit.TEXT, Unit.COUNT, Unit.RATIO),
        tuple(table_rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "lengths vary: the batch empties while the longest finishes; watch the running sequences near the end",
            "prefill and decode share steps: chunked prefill hides "
            "decode's reads behind its arithmetic, so this is safe",
        ),
        tables=(table,),
        totals=(Total("GPU-hours a pass", ("prefill", "decode")),),
    )


TOPIC = Topic(
    name="bulk",
    question="What does one pass over a large body of documents cost, and what should be cut first?",
    source="first principles over the step model",
    uses=("model", "gpu", "gpus", "tp", "weights", "kv", "prompt", "output"),
    answer=_answer,
    defaults={"prompt": "4k", "output": "200", "gpus": "64", "tp": "4"},
    extras=(
        Extra("documents", Unit.COUNT, "1M", "documents in one pass", POSITIVE),
        Extra("usable", Unit.RATIO, "90%", "share of the memory that may be used", PART),
        Extra(
            "shared",
            Unit.RATIO,
            "0%",
            "share of the prompt that all documents have in common and that is cached",
            SHARE,
        ),
    ),
)
