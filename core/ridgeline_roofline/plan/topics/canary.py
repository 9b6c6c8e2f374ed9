"""How large and how long a canary must be for the regression that it is to catch.

errors   n a side = (z_a sqrt(2 p q) + z_b sqrt(p1 q1 + p2 q2))^2 / (p2 - p1)^2,  p the mean of both rates
latency  n a side = 2 ((z_a + z_b) sd / difference)^2
early    sum of ln(likelihood ratio) a request; abort above ln((1 - b) / a), promote below ln(b / (1 - a))
expected requests = expected bound at the end / mean step (Wald's identity)
"""

from ridgeline_roofline.decisions.canary import (
    CanaryFacts,
    canary_requests,
    expected_requests,
    latency_requests,
    sequential_bounds,
)
from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Value
from ridgeline_roofline.plan.bounds import PART, POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.units import Unit

_STAGES = (0.01, 0.05, 0.25, 0.5)
_FACTORS = (1.25, 1.5, 2.0, 3.0, 5.0)


def _answer(inputs: PlanInputs) -> Plan:
    extras = inputs.extras
    facts = CanaryFacts(extras["base"], extras["regressed"], extras["false_alarm"], extras["miss"])
    size, bounds = canary_requests(facts), sequential_bounds(facts)
    slower = latency_requests(
        sd=extras["cv"], difference=extras["slower"], false_alarm=facts.false_alarm, miss=facts.miss
    )
    largest = max(size.value, slower.value)
    share = extras["share"]
    sound, bad = (
        expected_requests(facts, true_rate=facts.base_rate),
        expected_requests(facts, true_rate=facts.regressed_rate),
    )
    # The other side is served by everything that is not the canary: it fills first.
    duration_s = largest / (inputs.rate_per_s * share)
    answers = (
        Answer("requests a side, errors", size.value, Unit.REQUESTS, size.derivation),
        Answer("requests a side, latency", slower.value, Unit.REQUESTS, slower.derivation),
        Answer("requests a side", largest, Unit.REQUESTS, "the larger: both gates must be able to speak"),
        Answer(
            "time of the canary",
            duration_s,
            Unit.SECONDS,
            f"{largest} / ({inputs.rate_per_s:g}/s x {share:.0%})",
        ),
        Answer("abort above", bounds.value.abort_above, Unit.RATIO, bounds.derivation),
        Answer("promote below", bounds.value.promote_below, Unit.RATIO, "the same test's other bound"),
        Answer(
            "sequential, if sound", sound, Unit.REQUESTS, "expected until it is promoted, by Wald's identity"
        ),
        Answer("sequential, if regressed", bad, Unit.REQUESTS, "expected until it is aborted"),
        Answer(
            "users who meet the regression", bad, Unit.REQUESTS, "requests that the canary serves until then"
        ),
    )
    rows: list[tuple[Value, ...]] = []
    for factor in _FACTORS:
        if facts.base_rate * factor < 1:
            at = CanaryFacts(facts.base_rate, facts.base_rate * factor, facts.false_alarm, facts.miss)
            count = canary_requests(at).value
            rows.append((factor, count, count / (inputs.rate_per_s * share)))
    table = Table(
        "By the regression to catch",
        ("times the base rate", "requests a side", "time"),
        (Unit.RATIO, Unit.REQUESTS, Unit.SECONDS),
        tuple(rows),
    )
    stages = Table(
        "By share of the traffic",
        ("share", "time"),
        (Unit.RATIO, Unit.SECONDS),
        tuple((stage, largest / (inputs.rate_per_s * stage)) for stage in _STAGES),
    )
    curve = Curve(
        "requests by regression",
        "times the base rate",
        "requests a side",
        tuple(float(row[0]) for row in rows),
        {"errors": [float(row[1]) for row in rows]},
    )
    return Plan(
        answers,
        breaks_when=(
            "requests of one conversation are not independent: count conversations; see failures a conversation",
            "the traffic changes while the canary runs: compare with the same hours of the base, not with last week",
            "one reads the result again and again: a fixed-size test is then wrong; the sequential one allows it",
        ),
        tables=(table, stages),
        curve=curve,
    )


TOPIC = Topic(
    name="canary",
    question="How many requests must a canary see before its verdict means anything?",
    source="Fleiss, Levin, Paik, Statistical Methods for Rates and "
    "Proportions, 2003, section 4.2; Wald, Sequential Tests, 1945",
    uses=("rate",),
    answer=_answer,
    defaults={"rate": "20/s"},
    extras=(
        Extra("base", Unit.RATIO, "1%", "share of requests that fail today"),
        Extra("regressed", Unit.RATIO, "2%", "share from which the candidate must be stopped"),
        Extra("slower", Unit.RATIO, "5%", "slow-down of the mean latency that must be seen", POSITIVE),
        Extra("cv", Unit.RATIO, "60%", "standard deviation / mean of the latency"),
        Extra("false_alarm", Unit.RATIO, "5%", "chance to abort a sound candidate"),
        Extra("miss", Unit.RATIO, "5%", "chance to promote a regressed one"),
        Extra("share", Unit.RATIO, "5%", "share of the traffic that the canary gets", PART),
    ),
)
