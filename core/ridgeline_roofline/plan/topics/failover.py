"""The smallest fleet that survives the loss of any one region, and where its headroom lies.

needed = ceil(total load / (unit x utilisation)) replicas must be left after the loss of the largest region
every region holds at least its own load; headroom goes to the smallest region first
lower bound = total load / unit x n / (n - 1), for n regions of equal size
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.decisions.capacity_unit import CapacityFacts, capacity_units
from ridgeline_roofline.decisions.failover import FailoverFacts, failover_fleet, failover_routes
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import Workload
from ridgeline_roofline.units import Unit

_REGIONS = ("a", "b", "c", "d")


def _answer(inputs: PlanInputs) -> Plan:
    shares = [inputs.extras[region] for region in _REGIONS if inputs.extras[region] > 0]
    if len(shares) < 2:
        raise SettingsError(
            "one region cannot fail over: give at least two shares, for example a=60% b=40%", param="b"
        )
    loads = [inputs.rate_per_s * share / sum(shares) for share in shares]
    work = Workload(inputs.prompt_tokens, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s)
    unit = capacity_units(CapacityFacts(inputs.step_model(), work, inputs.extras["efficiency"]))
    if unit.value == 0:
        raise SettingsError(f"no replica serves this: {unit.derivation}", param="tp")
    usable = inputs.extras["utilisation"]
    facts = FailoverFacts(loads, unit.value, usable)
    decided = failover_fleet(facts)
    fleet, per = decided.value, unit.value * usable
    needed = sum(max(1, -int(-load // per)) for load in loads)
    total = sum(fleet.replicas)
    gpus = inputs.layout.gpus
    bound = sum(loads) / per * len(loads) / (len(loads) - 1)
    answers = (
        Answer("unit of a replica", unit.value, Unit.REQUESTS_PER_S, unit.derivation),
        Answer("replicas without failover", needed, Unit.COUNT, "each region for its own load"),
        Answer("headroom", total - needed, Unit.COUNT, "replicas that wait for the loss of a region"),
        Answer("replicas", total, Unit.COUNT, decided.derivation),
        Answer(
            "lower bound",
            bound,
            Unit.COUNT,
            f"load / unit x {len(loads)} / {len(loads) - 1}, regions of equal size",
        ),
        Answer("GPUs", total * gpus, Unit.COUNT, f"{total} x {gpus}"),
        Answer(
            "load carried after the worst loss",
            fleet.lost_carried_ratio,
            Unit.RATIO,
            "at least 1: nothing is refused",
        ),
        Answer(
            "cost of surviving an hour",
            (total - needed) * gpus * inputs.gpu.usd_per_s.value * 3600,
            Unit.USD,
            "headroom x GPU price",
        ),
    )
    rows: list[tuple[Value, ...]] = []
    for name, load, replicas in zip(_REGIONS, loads, fleet.replicas, strict=False):
        left = total - replicas
        rows.append((name, load, replicas, load / (replicas * unit.value), sum(loads) / (left * unit.value)))
    table = Table(
        "By region",
        ("region", "load", "replicas", "busy now", "others busy if it is lost"),
        (Unit.TEXT, Unit.REQUESTS_PER_S, Unit.COUNT, Unit.RATIO, Unit.RATIO),
        tuple(rows),
    )
    names = _REGIONS[: len(loads)]
    routes = Table(
        "Where the load of a lost region goes, by what the others have to spare",
        ("lost", *names),
        (Unit.TEXT, *(Unit.REQUESTS_PER_S for _ in names)),
        tuple((name, *failover_routes(facts, fleet.replicas, lost=n)) for n, name in enumerate(names)),
    )
    return Plan(
        answers,
        breaks_when=(
            "caches are cold where the traffic goes: prefill is higher for a while; see hit tokens after a drill",
            "regions peak at different hours: sizing each by its own peak is too much; give the peak of the sum",
        ),
        tables=(table, routes),
        totals=(Total("replicas", ("replicas without failover", "headroom")),),
    )


TOPIC = Topic(
    name="failover",
    question="What is the smallest fleet that survives the loss of any one region?",
    source="first principles: n regions of equal size need n / (n - 1) of the load",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "ttft", "tpot", "rate"),
    answer=_answer,
    defaults={"tp": "8", "rate": "60/s"},
    extras=(
        Extra("a", Unit.RATIO, "50%", "share of the load in region a", SHARE),
        Extra("b", Unit.RATIO, "30%", "in region b", SHARE),
        Extra("c", Unit.RATIO, "20%", "in region c; 0%: there is none", SHARE),
        Extra("d", Unit.RATIO, "0%", "in region d", SHARE),
        Extra(
            "utilisation",
            Unit.RATIO,
            "80%",
            "share of a replica's unit that may be used, also after a loss",
            PART,
        ),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
    ),
)
