"""Experts divided over ranks: what moves, how it splits between NVLink and NIC, and what imbalance costs.

bytes a token and MoE layer = top_k x hidden x (dispatch bytes + combine bytes)
of it beyond the node: with node-limited dispatch a token goes to at most M nodes, one copy to each
step of the busiest rank = mean load x (max / mean); a placement that sorts experts by load recovers most
two half batches overlap one's messages with the other's arithmetic, and read the experts twice
"""

from math import comb

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.decisions.batch_split import SplitFacts, batch_split, halves_s
from ridgeline_roofline.decisions.expert_placement import PlacementFacts, expert_placement, in_order_ratio
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import COUNTED, COUNTED_OR_NONE, EXPONENT, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.collectives import CollectiveKind
from ridgeline_roofline.step.timing import StepTime
from ridgeline_roofline.units import Unit, show

_BATCHES = (16, 64, 256, 1024, 4096)


def expected_nodes(nodes: int, experts: int, chosen: int) -> float:
    """Distinct nodes that `chosen` of `experts` experts lie on, chosen at random without repetition."""
    each = experts // nodes
    missed = comb(experts - each, chosen) / comb(experts, chosen)
    return nodes * (1 - missed)


def zipf_loads(experts: int, exponent: float) -> list[float]:
    """Shares of tokens by expert, most popular first; exponent 0 is uniform."""
    weights = [1 / (rank + 1) ** exponent for rank in range(experts)]
    total = sum(weights)
    return [weight / total for weight in weights]


def _collectives(step: StepTime) -> float:
    return sum(each.collectives_s for each in step.ops if each.op.collective is CollectiveKind.ALL_TO_ALL)


def _experts_s(step: StepTime) -> float:
    return sum(each.seconds for each in step.ops if each.op.name == "experts")


def _split(inputs: PlanInputs, rows: float) -> SplitFacts:
    whole = inputs.step_model().step_s(decode_batch(rows, inputs.context_tokens))
    half = inputs.step_model().step(decode_batch(rows / 2, inputs.context_tokens))
    moving = _collectives(half)
    return SplitFacts(whole, half.seconds - moving, moving, inputs.model.layers)


def _split_gain(inputs: PlanInputs, rows: float) -> float:
    facts = _split(inputs, rows)
    return facts.whole_s / halves_s(facts)


def _least_batch(inputs: PlanInputs) -> float:
    """The smallest batch (a power of two) at which two half batches win; infinite where none does."""
    return next((float(2**n) for n in range(1, 18) if _split_gain(inputs, 2**n) > 1), float("inf"))


def _answer(inputs: PlanInputs) -> Plan:
    spec, layout, extras = inputs.model, inputs.layout, inputs.extras
    if not spec.is_moe or layout.ep == 1:
        raise SettingsError(
            f"ep={layout.ep} on {spec.model_id}: give a MoE and its expert ranks, for example "
            "--model deepseek-v3 --ep 32 --dp 32 --tp 1",
            param="ep",
        )
    layers = sum(count for count, _ in spec.moe_layers())
    _, moe = next(iter(spec.moe_layers()))
    inside = min(layout.ep, int(inputs.gpu.domain_gpus.value))
    nodes = layout.ep // inside
    away = expected_nodes(nodes, moe.experts, moe.top_k) if nodes > 1 else 1.0
    limited = min(away, extras["nodes"]) if nodes > 1 else 1.0
    wide = limited * (1 - 1 / nodes)
    one = spec.hidden * (extras["dispatch"] + extras["combine"]) * layers
    nvlink_bytes, nic_bytes = max(0.0, moe.top_k - wide) * one, wide * one
    loads = zipf_loads(moe.experts, extras["skew"])
    plain = in_order_ratio(loads, layout.ep)
    by_load = expert_placement(PlacementFacts(loads, layout.ep))
    with_copies = expert_placement(PlacementFacts(loads, layout.ep, int(extras["spare"])))
    placed, copied = by_load.value.busiest_ratio, with_copies.value.busiest_ratio
    # What moved is spread over the old places without regard to load.
    moved = [loads[(expert * 7 + 3) % moe.experts] for expert in range(moe.experts)]
    stale = (1 - extras["drift"]) * placed + extras["drift"] * in_order_ratio(moved, layout.ep)
    step = inputs.step_model().step(decode_batch(inputs.batch, inputs.context_tokens))
    experts_s, moving_s = _experts_s(step), _collectives(step)
    rest_s = step.seconds - experts_s - moving_s
    late_s = experts_s * (placed - 1)
    gain = _split_gain(inputs, inputs.batch)
    answers = (
        Answer("bytes a token", nvlink_bytes + nic_bytes, Unit.BYTES_PER_TOKEN, "over NVLink + over the NIC"),
        Answer(
            "over NVLink",
            nvlink_bytes,
            Unit.BYTES_PER_TOKEN,
            f"({moe.top_k} experts - {wide:.3g} copies that leave "
            f"the node) x {show(one, Unit.BYTES)} in {layers} layers",
        ),
        Answer(
            "over the NIC",
            nic_bytes,
            Unit.BYTES_PER_TOKEN,
            f"min({away:.3g} nodes met, {extras['nodes']:g} allowed) x (1 - 1/{nodes}) x {show(one, Unit.BYTES)}",
        ),
        Answer(
            "experts", experts_s, Unit.SECONDS, f"{inputs.batch} rows over {layout.ep} ranks, perfectly even"
        ),
        Answer("dispatch and combine", moving_s, Unit.SECONDS, f"2 x {layers} all-to-alls"),
        Answer(
            "everything else", rest_s, Unit.SECONDS, "attention, norms, router, shared experts, output matrix"
        ),
        Answer(
            "waiting for the busiest rank",
            late_s,
            Unit.SECONDS,
            f"experts x ({placed:.3g} - 1), placed by load",
        ),
        Answer("step", experts_s + moving_s + rest_s + late_s, Unit.SECONDS, "sum of the four"),
        Answer("busiest over mean, in order", plain, Unit.RATIO, f"Zipf with exponent {extras['skew']:g}"),
        Answer(
            "busiest over mean, placed",
            placed,
            Unit.RATIO,
            by_load.derivation,
        ),
        Answer(
            "busiest over mean, with copies",
            copied,
            Unit.RATIO,
            with_copies.derivation,
        ),
        Answer(
            "busiest over mean, after drift",
            stale,
            Unit.RATIO,
            f"{extras['drift']:.0%} of the traffic moved elsewhere",
        ),
        Answer(
            "gain of two half batches", gain, Unit.RATIO, batch_split(_split(inputs, inputs.batch)).derivation
        ),
        Answer("two half batches win from", _least_batch(inputs), Unit.SEQUENCES, "powers of two tried"),
    )
    rows: tuple[tuple[Value, ...], ...] = tuple(
        (
            n,
            inputs.step_model().step_s(decode_batch(n, inputs.context_tokens)),
            halves_s(_split(inputs, n)),
            _split_gain(inputs, n),
        )
        for n in _BATCHES
    )
    table = Table(
        "Two half batches",
        ("batch", "one batch", "two halves", "gain"),
        (Unit.SEQUENCES, Unit.SECONDS, Unit.SECONDS, Unit.RATIO),
        rows,
    )
    return Plan(
        answers,
        breaks_when=(
            "popularity differs by layer and by hour: use the engine's expert counts, and watch completion by rank",
            "kernels for messages take multiprocessors from the matrices: overlap gains less; compare both in a trace",
        ),
        tables=(table,),
        totals=(
            Total("bytes a token", ("over NVLink", "over the NIC")),
            Total(
                "step", ("experts", "dispatch and combine", "everything else", "waiting for the busiest rank")
            ),
        ),
    )


TOPIC = Topic(
    name="ep",
    question="What do experts on many ranks move, and what do imbalance and overlap cost or gain?",
    source="DeepSeek-V3, 2024, sections 2.1.2 and 3.4; order statistics of loads from first principles",
    uses=("model", "gpu", "tp", "ep", "dp", "weights", "kv", "batch", "context", "link"),
    answer=_answer,
    defaults={"model": "deepseek-v3", "tp": "1", "ep": "32", "dp": "32", "batch": "1024", "context": "4k"},
    extras=(
        Extra("dispatch", Unit.BYTES, "1B", "bytes a value when sent to experts (FP8: 1B)"),
        Extra("combine", Unit.BYTES, "2B", "bytes a value on the way back (BF16: 2B)"),
        Extra("nodes", Unit.COUNT, "4", "nodes that a token may go to", COUNTED),
        Extra("skew", Unit.RATIO, "0.5", "exponent of the experts' popularity; 0 is even", EXPONENT),
        Extra("spare", Unit.COUNT, "32", "places for copies of popular experts", COUNTED_OR_NONE),
        Extra("drift", Unit.RATIO, "20%", "share of traffic that moved since experts were placed", SHARE),
    ),
)
