"""How busy a pool may be for a p99 wait: M/G/1 and M/G/c, and where an LLM engine is no textbook queue.

M/G/1 mean wait   rho s (1 + scv) / (2 (1 - rho))
M/G/c mean wait   C(c, rho) s / (c (1 - rho)) x (1 + scv) / 2,  C by Erlang
p-th wait         mean wait / P(wait) x ln(P(wait) / (1 - p))
ceiling           the largest rho whose p-th wait is what the target leaves
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Total
from ridgeline_roofline.plan.bounds import CHANCE, COUNTED, PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.queueing import mean_wait_s, utilisation_ceiling, wait_quantile_s
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_LOADS = tuple(n / 20 for n in range(1, 20))
_BREAKS = (
    (
        "service depends on load",
        "a fuller batch makes every step longer",
        "step_ms against running sequences",
    ),
    (
        "servers are shared",
        "one step serves all: no request has the engine for itself",
        "rows and tokens a step",
    ),
    (
        "work is not conserved",
        "a preemption throws computed tokens away",
        "recomputed tokens, preemptions by cause",
    ),
    (
        "arrivals are not independent",
        "agents and retries send the next when one ends",
        "arrival variance / mean a second",
    ),
)


def _answer(inputs: PlanInputs) -> Plan:
    extras, servers = inputs.extras, int(inputs.extras["servers"])
    model_s = inputs.step_model().step_s(prompt_batch(inputs.prompt_tokens)) / extras["efficiency"]
    service_s = extras["service"] or model_s
    scv, quantile = extras["scv"], extras["quantile"]
    wait_target_s = inputs.ttft_s - service_s
    if wait_target_s <= 0:
        raise SettingsError(
            f"ttft={show(inputs.ttft_s, Unit.SECONDS)}: the prefill "
            f"alone takes {show(service_s, Unit.SECONDS)}; give a longer "
            "target, more ranks, or a shorter prompt",
            param="ttft",
        )
    one = utilisation_ceiling(service_s, scv, target_s=wait_target_s, quantile=quantile)
    many = utilisation_ceiling(service_s, scv, target_s=wait_target_s, quantile=quantile, servers=servers)
    answers = (
        Answer(
            "service time",
            service_s,
            Unit.SECONDS,
            "given" if extras["service"] else f"prefill of {inputs.prompt_tokens} tokens",
        ),
        Answer(
            "wait that the target leaves",
            wait_target_s,
            Unit.SECONDS,
            f"{show(inputs.ttft_s, Unit.SECONDS)} - service",
        ),
        Answer("TTFT target", inputs.ttft_s, Unit.SECONDS, "service + wait"),
        Answer(
            "mean wait at 50%",
            mean_wait_s(service_s, scv, 0.5),
            Unit.SECONDS,
            f"0.5 x s x (1 + {scv:g}) / (2 x 0.5), one server",
        ),
        Answer(
            "ceiling, one replica",
            one,
            Unit.RATIO,
            f"p{100 * quantile:g} of the wait meets it: M/G/1, variance / mean^2 = {scv:g}",
        ),
        Answer(f"ceiling, pool of {servers}", many, Unit.RATIO, "one queue for all of them: M/G/c"),
        Answer("requests a second, one replica", one / service_s, Unit.REQUESTS_PER_S, "ceiling / service"),
        Answer(
            "requests a second, the pool",
            many * servers / service_s,
            Unit.REQUESTS_PER_S,
            "ceiling x servers / service",
        ),
        Answer("gain of one queue", many / one, Unit.RATIO, "ceiling of the pool / of one"),
    )
    table = Table(
        "Where an LLM engine is no textbook queue",
        ("what breaks", "how", "the metric that shows it"),
        (Unit.TEXT, Unit.TEXT, Unit.TEXT),
        _BREAKS,
    )
    curve = Curve(
        f"p{100 * quantile:g} wait over utilisation",
        "utilisation",
        "s",
        _LOADS,
        {
            "one replica": [wait_quantile_s(service_s, scv, load, quantile=quantile) for load in _LOADS],
            f"pool of {servers}": [
                wait_quantile_s(service_s, scv, load, quantile=quantile, servers=servers) for load in _LOADS
            ],
            "target": [wait_target_s] * len(_LOADS),
        },
    )
    return Plan(
        answers,
        breaks_when=tuple(f"{what}: {how}; see {metric}" for what, how, metric in _BREAKS),
        tables=(table,),
        curve=curve,
        totals=(Total("TTFT target", ("service time", "wait that the target leaves")),),
    )


TOPIC = Topic(
    name="utilisation",
    question="How busy may a pool be before its p99 wait misses the target?",
    source="Pollaczek, 1930, and Khinchine, 1932; Erlang, 1917; "
    "Allen, Probability, Statistics, and Queueing Theory, 1990",
    uses=("model", "gpu", "tp", "weights", "prompt", "ttft"),
    answer=_answer,
    defaults={"tp": "8"},
    extras=(
        Extra("service", Unit.SECONDS, "0s", "mean service time; 0s: the prefill of --prompt"),
        Extra("scv", Unit.RATIO, "1.5", "variance / mean^2 of the service time (1: exponential)"),
        Extra("quantile", Unit.RATIO, "99%", "share of requests that must not wait longer", CHANCE),
        Extra("servers", Unit.COUNT, "4", "replicas behind one queue", COUNTED),
        Extra("efficiency", Unit.RATIO, "60%", "share of the floor's speed that prefill reaches", PART),
    ),
)
