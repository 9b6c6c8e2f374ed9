"""Two generations in one fleet: one capacity unit for both, and what each buys for a dollar.

unit = requests/s of one replica at the workload, with TTFT and TPOT within target (the step in balance)
units of a dollar = unit / (GPUs of a replica x price)
replicas to add = ceil((rate - what is there x unit x utilisation) / (unit x utilisation))
routing share = units of a pool / all units
"""

from math import ceil

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.decisions.capacity_unit import CapacityFacts, capacity_units
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import COUNTED_OR_NONE, PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import Workload
from ridgeline_roofline.units import Unit


def _unit(inputs: PlanInputs, gpu: Gpu) -> tuple[float, str]:
    work = Workload(inputs.prompt_tokens, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s)
    facts = CapacityFacts(inputs.step_model(gpu=gpu), work, inputs.extras["efficiency"])
    found = capacity_units(facts)
    return found.value, found.derivation


def _answer(inputs: PlanInputs) -> Plan:
    if len(inputs.gpus) < 2:
        raise SettingsError(
            "gpu is given once: give it twice, for example --gpu h100-sxm --gpu b200", param="gpu"
        )
    first, second = inputs.gpus[0], inputs.gpus[1]
    (one, one_why), (two, two_why) = _unit(inputs, first), _unit(inputs, second)
    if one == 0 or two == 0:
        raise SettingsError(f"no common unit: {one_why if one == 0 else two_why}", param="gpu")
    gpus = inputs.layout.gpus
    there = int(inputs.extras["first"] // gpus)
    covered = min(inputs.rate_per_s, there * one * inputs.extras["utilisation"])
    more = ceil(max(0.0, inputs.rate_per_s - covered) / (two * inputs.extras["utilisation"]))
    dear = [unit / (gpus * gpu.usd_per_s.value * 3600) for unit, gpu in ((one, first), (two, second))]
    share = there * one / (there * one + more * two) if there or more else 0.0
    answers = (
        Answer(f"unit of {first.gpu_id}", one, Unit.REQUESTS_PER_S, one_why),
        Answer(f"unit of {second.gpu_id}", two, Unit.REQUESTS_PER_S, two_why),
        Answer(
            "one of the second is worth",
            two / one,
            Unit.RATIO,
            f"{two:.3f} / {one:.3f} replicas of the first",
        ),
        Answer(
            "units an hour's dollar buys, first",
            dear[0],
            Unit.RATIO,
            f"{one:.3f} / ({gpus} x {first.usd_per_s.value * 3600:.2f})",
        ),
        Answer(
            "units an hour's dollar buys, second",
            dear[1],
            Unit.RATIO,
            f"{two:.3f} / ({gpus} x {second.usd_per_s.value * 3600:.2f})",
        ),
        Answer(
            "buy next",
            second.gpu_id if dear[1] > dear[0] else first.gpu_id,
            Unit.TEXT,
            "more units for a dollar",
        ),
        Answer(
            "carried by the first",
            covered,
            Unit.REQUESTS_PER_S,
            f"{there} replicas that are there, at {inputs.extras['utilisation']:.0%}",
        ),
        Answer(
            "left for the second",
            inputs.rate_per_s - covered,
            Unit.REQUESTS_PER_S,
            "rate - carried by the first",
        ),
        Answer("rate", inputs.rate_per_s, Unit.REQUESTS_PER_S, "sum of both"),
        Answer(
            "replicas of the second to add",
            more,
            Unit.COUNT,
            f"ceil of what is left / ({two:.3f} x utilisation)",
        ),
        Answer(
            "quota to grant",
            (there * one + more * two) * inputs.extras["utilisation"],
            Unit.REQUESTS_PER_S,
            "all units x utilisation: tenants' shares of it are in the same unit on either kind",
        ),
        Answer(
            "share to route to the first",
            share,
            Unit.RATIO,
            "its units / all units: equal finish times, not equal counts",
        ),
    )
    rows: list[tuple[Value, ...]] = []
    for gpu, unit in ((first, one), (second, two)):
        rows.append((gpu.gpu_id, unit, unit / one, unit / gpus, gpus * gpu.usd_per_s.value / unit))
    table = Table(
        f"On {inputs.layout}",
        ("gpu", "unit of a replica", "in units of the first", "unit of a GPU", "cost of a request"),
        (Unit.TEXT, Unit.REQUESTS_PER_S, Unit.RATIO, Unit.REQUESTS_PER_S, Unit.USD_PER_REQUEST),
        tuple(rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "real requests are longer or shorter than the reference: the "
            "ratio differs by regime; see `ridgeline plan gpu-compare`",
            "the generations run different formats: measure each pool's own step model; its status shows the unit",
        ),
        tables=(table,),
        totals=(Total("rate", ("carried by the first", "left for the second")),),
    )


TOPIC = Topic(
    name="fleet",
    question="What is one capacity unit over two GPU generations, and which should be bought next?",
    source="first principles over the capacity unit",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "ttft", "tpot", "rate"),
    answer=_answer,
    defaults={"gpu": "h100-sxm,b200", "tp": "8", "rate": "40/s"},
    extras=(
        Extra("first", Unit.COUNT, "32", "GPUs of the first kind that are there", COUNTED_OR_NONE),
        Extra("utilisation", Unit.RATIO, "80%", "share of a replica's unit that may be used", PART),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
    ),
)
