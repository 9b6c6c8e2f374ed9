"""Is a claimed speed possible: the claim against the physical ceiling, and what would have to be true.

A claim in tokens/s without batch, context, precision or GPU count can be right under conditions that were left
out. For each of them the one value is sought that makes the claim just possible, all else as given.
"""

from collections.abc import Callable
from dataclasses import replace

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.units import Unit, show

_BATCHES = tuple(2**n for n in range(13))
_CONDITIONS = ("batch", "weights' precision", "GPUs in one layout", "draft tokens accepted", "context")


def _rate(inputs: PlanInputs, *, batch: int | None = None, accepted: float = 1.0) -> float:
    rows = batch or inputs.batch
    step_s = inputs.step_model().step_s(decode_batch(rows, inputs.context_tokens))
    return rows * accepted / step_s


def _first(values: tuple[int, ...], holds: Callable[[int], bool]) -> int | None:
    return next((value for value in values if holds(value)), None)


def _conditions(inputs: PlanInputs, claimed: float) -> tuple[tuple[Value, ...], ...]:
    """(condition, as given, what would make it possible, what to ask)."""
    enough = _first(_BATCHES, lambda rows: _rate(inputs, batch=rows) >= claimed)
    batch = enough and _first(
        tuple(range(enough // 2 + 1, enough + 1)), lambda rows: _rate(inputs, batch=rows) >= claimed
    )
    formats = [
        dtype
        for dtype in (Dtype.FP8, Dtype.NVFP4)
        if dtype.bytes_per_element < inputs.formats.weights.bytes_per_element
        and _rate(replace(inputs, formats=Formats(dtype, inputs.formats.kv, inputs.formats.activations)))
        >= claimed
    ]
    heads = [mixer.heads for _, mixer in inputs.model.mixers()]
    widths = tuple(
        tp for tp in (1, 2, 4, 8, 16, 32) if tp > inputs.layout.tp and all(h % tp == 0 for h in heads)
    )
    tp = _first(
        widths, lambda tp: _rate(replace(inputs, layout=Layout(tp=tp, pp=inputs.layout.pp))) >= claimed
    )
    needed = claimed / _rate(inputs)
    empty = _rate(replace(inputs, context_tokens=1)) >= claimed
    return (
        (
            "batch",
            str(inputs.batch),
            f"{batch} sequences" if batch else "no batch",
            "Is it a sum over how many users?",
        ),
        (
            "weights' precision",
            inputs.formats.weights.value,
            " or ".join(formats) or "none that is known",
            "Which format, and what did it cost in quality?",
        ),
        (
            "GPUs in one layout",
            str(inputs.layout.gpus),
            f"TP{tp}" if tp else "no TP up to 32",
            "How many GPUs together?",
        ),
        (
            "draft tokens accepted",
            "1 token a step",
            f"{max(1.0, needed):.2f} tokens a step",
            "Is speculation on, and on which text was it measured?",
        ),
        (
            "context",
            f"{inputs.context_tokens} tokens",
            "an empty one" if empty else "not even an empty one",
            "How long are prompt and output?",
        ),
    )


def _answer(inputs: PlanInputs) -> Plan:
    claimed = inputs.extras["claimed"]
    step = inputs.step_model().step(decode_batch(inputs.batch, inputs.context_tokens))
    ceiling = inputs.batch / step.seconds
    ratio = claimed / ceiling
    possible = ratio <= 1
    verdict = "possible" if possible else "not possible as stated"
    answers = (
        Answer(
            "ceiling",
            ceiling,
            Unit.TOKENS_PER_S,
            f"{inputs.batch} / {show(step.seconds, Unit.SECONDS)}, a floor at {inputs.context_tokens} tokens",
        ),
        Answer("claimed", claimed, Unit.TOKENS_PER_S, "as given"),
        Answer("claim over ceiling", ratio, Unit.RATIO, f"{claimed:.4g} / {ceiling:.4g}"),
        Answer(
            "verdict", verdict, Unit.TEXT, "a claim above the ceiling needs a condition that it leaves out"
        ),
    )
    title = (
        "What each condition alone would have to be" if not possible else "Conditions to ask for all the same"
    )
    table = Table(
        title,
        ("condition", "as given", "makes it possible", "ask"),
        (Unit.TEXT,) * 4,
        _conditions(inputs, claimed),
    )
    return Plan(
        answers,
        breaks_when=(
            "two conditions hold at once: each line here changes one; repeat with the values that you were told",
            "the claim counts prompt tokens: those are mostly prefill; ask for output tokens alone",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="claim",
    question="Can a claimed number of tokens a second be true, and under which unstated condition?",
    source="first principles: the floor of a step bounds every claim",
    uses=("model", "gpu", "tp", "pp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"tp": "8", "batch": "1", "context": "1k"},
    extras=(Extra("claimed", Unit.TOKENS_PER_S, "500tok/s", "the claim, output tokens a second", POSITIVE),),
)
