"""The price of a token by phase from first principles, and the assumption that moves it most.

a resource token = ms of a prompt token of the reference prompt, alone on the device
weights: prompt 1; cached = what a cached half adds to computing the other half; output = step / batch
price = resource token x GPU price / utilisation x (1 + margin) x weight
"""

from collections.abc import Callable
from dataclasses import replace

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.decisions.price import Price, PriceFacts, price_per_token
from ridgeline_roofline.decisions.resource_weights import MICRO, WeightFacts, resource_weights
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import slowed
from ridgeline_roofline.step.timing import RooflineStepModel
from ridgeline_roofline.units import Unit


def _model(inputs: PlanInputs) -> RooflineStepModel:
    return slowed(inputs.step_model(), inputs.extras["efficiency"])


def _facts(inputs: PlanInputs) -> PriceFacts:
    return PriceFacts(
        weights=WeightFacts(inputs.batch, inputs.context_tokens, inputs.prompt_tokens),
        usd_per_s=inputs.layout.gpus * inputs.extras["gpu_hour"] / 3600,
        utilisation=inputs.extras["utilisation"],
        margin=inputs.extras["margin"],
    )


def _request_usd(inputs: PlanInputs) -> float:
    found: Price = price_per_token(_model(inputs), _facts(inputs)).value
    cached = inputs.prompt_tokens * inputs.extras["cached"]
    return (
        (inputs.prompt_tokens - cached) * found.prompt_usd
        + cached * found.cached_usd
        + inputs.output_tokens * found.output_usd
    )


def _set(name: str, factor: float) -> Callable[[PlanInputs], PlanInputs]:
    return lambda inputs: replace(inputs, extras={**inputs.extras, name: inputs.extras[name] * factor})


_MOVES: tuple[tuple[str, Callable[[PlanInputs], PlanInputs]], ...] = (
    ("half the batch", lambda inputs: replace(inputs, batch=max(1, inputs.batch // 2))),
    ("twice the context", lambda inputs: replace(inputs, context_tokens=2 * inputs.context_tokens)),
    ("half the utilisation", _set("utilisation", 0.5)),
    ("20% less of the floor's speed", _set("efficiency", 0.8)),
    ("no cached prompt", _set("cached", 0.0)),
    ("GPU hour 20% dearer", _set("gpu_hour", 1.2)),
    ("FP8 weights", lambda inputs: replace(inputs, formats=Formats(Dtype.FP8, inputs.formats.kv, Dtype.FP8))),
)


def _answer(inputs: PlanInputs) -> Plan:
    if inputs.extras["gpu_hour"] == 0:
        inputs = replace(inputs, extras={**inputs.extras, "gpu_hour": inputs.gpu.usd_per_s.value * 3600})
    weights = resource_weights(_model(inputs), _facts(inputs).weights)
    decided = price_per_token(_model(inputs), _facts(inputs))
    found, usd = decided.value, _request_usd(inputs)
    cached = inputs.prompt_tokens * inputs.extras["cached"]
    prompt_usd = (inputs.prompt_tokens - cached) * found.prompt_usd
    cached_usd, output_usd = cached * found.cached_usd, inputs.output_tokens * found.output_usd
    moves: list[tuple[Value, ...]] = [(name, _request_usd(move(inputs)) / usd - 1) for name, move in _MOVES]
    moves.sort(key=lambda row: -abs(float(row[1])))
    answers = (
        Answer(
            "weight of a prompt token", weights.value.prompt_micro / MICRO, Unit.RATIO, weights.derivation
        ),
        Answer(
            "weight of a cached token", weights.value.cached_micro / MICRO, Unit.RATIO, "see the line above"
        ),
        Answer(
            "weight of an output token", weights.value.output_micro / MICRO, Unit.RATIO, "see the first line"
        ),
        Answer("a prompt token", found.prompt_usd, Unit.USD_PER_TOKEN, decided.derivation),
        Answer("a cached token", found.cached_usd, Unit.USD_PER_TOKEN, "resource token x its weight"),
        Answer("an output token", found.output_usd, Unit.USD_PER_TOKEN, "resource token x its weight"),
        Answer("prompt of a request", prompt_usd, Unit.USD, f"{inputs.prompt_tokens - cached:.0f} tokens"),
        Answer("cached prompt of a request", cached_usd, Unit.USD, f"{cached:.0f} tokens"),
        Answer("output of a request", output_usd, Unit.USD, f"{inputs.output_tokens} tokens"),
        Answer("a request", prompt_usd + cached_usd + output_usd, Unit.USD, "sum of the three"),
        Answer(
            "moves it most",
            str(moves[0][0]),
            Unit.TEXT,
            f"{float(moves[0][1]):+.1%} of a request; the others below",
        ),
    )
    table = Table(
        "One assumption at a time",
        ("assumption", "price of a request"),
        (Unit.TEXT, Unit.RATIO),
        tuple(moves),
    )
    return Plan(
        answers,
        breaks_when=(
            "the fleet is not busy: idle GPUs cost as much; utilisation "
            "is the assumption to watch, see busy share by pool",
            "the real batch is not the priced one: compare the running gauge's mean with --batch",
        ),
        tables=(table,),
        totals=(
            Total("a request", ("prompt of a request", "cached prompt of a request", "output of a request")),
        ),
    )


TOPIC = Topic(
    name="price",
    question="What does a token of each phase cost, and which assumption moves it most?",
    source="first principles: GPU time of a token, divided by the share of time that is sold",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context", "prompt", "output"),
    answer=_answer,
    defaults={"tp": "8", "batch": "64"},
    extras=(
        Extra("gpu_hour", Unit.USD, "0USD", "of one GPU; 0USD: the catalogue's assumption"),
        Extra("utilisation", Unit.RATIO, "50%", "share of the paid time that serves requests", PART),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
        Extra("cached", Unit.RATIO, "30%", "share of the prompt that is cached", SHARE),
        Extra("margin", Unit.RATIO, "0%", "on top of the cost"),
    ),
)
