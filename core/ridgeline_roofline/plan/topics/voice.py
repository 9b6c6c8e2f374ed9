"""A spoken answer in 300 ms: every stage's milliseconds, and the model that fits what is left.

left for the LLM = budget - capture - end of speech - recognition - network - synthesis
the LLM must give its first clause: queue + prefill + (tokens of a clause - 1) x TPOT
speech plays at some tokens a second: a TPOT below that never stutters
"""

from ridgeline_roofline.catalogue.formats import Formats, arithmetic_of
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import COUNTED, PART, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import StepBatch, decode_batch, prompt_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.timing import RooflineStepModel
from ridgeline_roofline.units import Unit, show

_STAGES = ("capture", "endpoint", "recognition", "network", "synthesis")
_CANDIDATES = (
    ("llama-3.1-8b", 1),
    ("qwen3-32b", 2),
    ("gpt-oss-120b", 2),
    ("llama-3.3-70b", 8),
    ("llama-3.1-405b", 8),
)


def _first_clause_s(model: RooflineStepModel, inputs: PlanInputs, batch: StepBatch) -> float:
    """Prefill of what is new in this turn, and the steps of a clause behind it, beside the rows that decode."""
    new = inputs.prompt_tokens * (1 - inputs.extras["cached"])
    cached = inputs.prompt_tokens - new
    prefill_s = model.step_s(prompt_batch(new, cached_tokens=cached))
    return (prefill_s + (inputs.extras["clause"] - 1) * model.step_s(batch)) / inputs.extras["efficiency"]


def _answer(inputs: PlanInputs) -> Plan:
    extras, model = inputs.extras, inputs.step_model()
    batch = decode_batch(inputs.batch, inputs.context_tokens)
    spent = sum(extras[stage] for stage in _STAGES)
    left_s = extras["budget"] - spent
    llm_s, tpot_s = _first_clause_s(model, inputs, batch), model.step_s(batch) / extras["efficiency"]
    rows: list[tuple[Value, ...]] = []
    for model_id, tp in _CANDIDATES:
        spec = model_named(model_id)
        formats = Formats(spec.native_weights, inputs.formats.kv, arithmetic_of(spec.native_weights))
        other = RooflineStepModel(spec, inputs.gpu, Layout(tp=tp), formats, inputs.fabric, inputs.efficiency)
        needed = _first_clause_s(other, inputs, batch)
        rows.append(
            (
                model_id,
                tp,
                needed,
                "fits" if needed <= left_s else f"{show(needed - left_s, Unit.SECONDS)} over",
            )
        )
    lines = tuple(Answer(stage, extras[stage], Unit.SECONDS, "given; measure your own") for stage in _STAGES)
    playing = 1 / extras["speech"]
    answers = (
        *lines,
        Answer(
            "left for the LLM",
            left_s,
            Unit.SECONDS,
            f"{show(extras['budget'], Unit.SECONDS)} - what the others take",
        ),
        Answer("budget", spent + left_s, Unit.SECONDS, "sum of the lines above"),
        Answer(
            "first clause",
            llm_s,
            Unit.SECONDS,
            f"prefill of {inputs.prompt_tokens * (1 - extras['cached']):.0f} "
            f"new tokens + {extras['clause'] - 1:.0f} steps "
            f"of {show(tpot_s, Unit.SECONDS)}, at {extras['efficiency']:.0%} of the floor's speed",
        ),
        Answer("slack", left_s - llm_s, Unit.SECONDS, "left - first clause: negative means too slow"),
        Answer(
            "verdict",
            "fits" if llm_s <= left_s else "does not fit",
            Unit.TEXT,
            "first clause against what is left",
        ),
        Answer(
            "TPOT that speech needs",
            playing,
            Unit.SECONDS,
            f"1 / {extras['speech']:.3g} tokens a second of speech; the model gives {show(tpot_s, Unit.SECONDS)}",
        ),
    )
    table = Table(
        f"Tiers on {inputs.gpu.gpu_id}",
        ("model", "tp", "first clause", "verdict"),
        (Unit.TEXT, Unit.COUNT, Unit.SECONDS, Unit.TEXT),
        tuple(rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "other prompts prefill at the same time: add a chunk's "
            "milliseconds; watch the queue time of the voice class",
            "the conversation's prefix was evicted: the whole prompt is prefilled; watch cached tokens of each turn",
        ),
        tables=(table,),
        totals=(Total("budget", (*_STAGES, "left for the LLM")),),
    )


TOPIC = Topic(
    name="voice",
    question="Which model can answer a caller within 300 ms, stage by stage?",
    source="first principles: a budget line by line",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context", "prompt"),
    answer=_answer,
    defaults={"model": "llama-3.1-8b", "tp": "1", "prompt": "2k", "context": "2k", "batch": "16"},
    extras=(
        Extra("budget", Unit.SECONDS, "300ms", "from the end of speech to the first sound", POSITIVE),
        Extra("capture", Unit.SECONDS, "20ms", "microphone frame and jitter buffer"),
        Extra("endpoint", Unit.SECONDS, "80ms", "knowing that the caller has finished"),
        Extra("recognition", Unit.SECONDS, "40ms", "last words to text"),
        Extra("network", Unit.SECONDS, "30ms", "both ways"),
        Extra("synthesis", Unit.SECONDS, "60ms", "first sound of a clause"),
        Extra("clause", Unit.TOKENS, "8", "tokens that synthesis needs to start", COUNTED),
        Extra("cached", Unit.RATIO, "90%", "share of the prompt that earlier turns left in the cache", SHARE),
        Extra("speech", Unit.TOKENS_PER_S, "4tok/s", "tokens that a second of speech carries", POSITIVE),
        Extra("efficiency", Unit.RATIO, "60%", "share of the floor's speed that is reached", PART),
    ),
)
