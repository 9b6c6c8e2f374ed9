"""All-reduce by latency and bandwidth: ring, one-shot, two-shot, and the sizes where they change places.

n ranks, S bytes a rank, B bytes/s one way, alpha s a message
ring          2 (n-1) alpha + 2 (n-1)/n S/B
one-shot      alpha + (n-1) S/B
two-shot      2 alpha + 2 (n-1)/n S/B
hierarchical  two-shot inside each domain of d ranks, all-reduce of S/d across them over the wide link
two-shot beats one-shot from S = alpha B / ((n-1) (1 - 2/n))
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Value
from ridgeline_roofline.plan.bounds import COUNTED_OR_NONE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.collectives import ALL_REDUCES, one_shot_crossover_bytes
from ridgeline_roofline.units import Unit, show

_SIZES = tuple(float(2**n) for n in range(10, 31, 2))
_RANKS = (2, 4, 8, 16, 32, 72)


def _answer(inputs: PlanInputs) -> Plan:
    ranks = int(inputs.extras["ranks"]) or max(2, inputs.layout.tp)
    link = inputs.fabric.link_over(ranks)
    row_bytes = inputs.model.hidden * inputs.formats.activations.bytes_per_element
    size = inputs.batch * row_bytes
    crossing = one_shot_crossover_bytes(ranks, link)
    best = inputs.fabric.all_reduce(size, ranks)
    forms = tuple(
        Answer(
            name,
            form(size, ranks, link).seconds,
            Unit.SECONDS,
            f"{show(form(size, ranks, link).latency_s, Unit.SECONDS)} "
            f"fixed + {show(form(size, ranks, link).transfer_s, Unit.SECONDS)} moving",
        )
        for name, form in ALL_REDUCES.items()
    )
    answers = (
        Answer(
            "message",
            size,
            Unit.BYTES,
            f"{inputs.batch} rows x {inputs.model.hidden} x {inputs.formats.activations}",
        ),
        *forms,
        Answer("best", best.algorithm, Unit.TEXT, f"at this size over {link.link_id}"),
        Answer("fixed part", best.latency_s, Unit.SECONDS, "of the best, whatever the message"),
        Answer("moving part", best.transfer_s, Unit.SECONDS, "of the best"),
        Answer(
            "two-shot wins from",
            crossing,
            Unit.BYTES,
            f"alpha B / ((n-1)(1-2/n)) = {show(link.latency_s, Unit.SECONDS)} x "
            f"{show(link.bytes_per_s, Unit.BYTES_PER_S)} / {(ranks - 1) * (1 - 2 / ranks):.3g}",
        ),
        Answer("rows where it wins", crossing / row_bytes, Unit.TOKENS, "the same, in tokens of this model"),
    )
    rows: list[tuple[Value, ...]] = []
    for n in _RANKS:
        over = inputs.fabric.link_over(n)
        at = one_shot_crossover_bytes(n, over)
        rows.append(
            (
                n,
                over.link_id,
                at,
                inputs.fabric.all_reduce(size, n).seconds,
                inputs.fabric.all_reduce(size, n).algorithm,
            )
        )
    table = Table(
        "By ranks",
        ("ranks", "link", "two-shot from", "this message", "by"),
        (Unit.COUNT, Unit.TEXT, Unit.BYTES, Unit.SECONDS, Unit.TEXT),
        tuple(rows),
    )
    curve = Curve(
        f"all-reduce over {ranks} ranks",
        "bytes",
        "us",
        _SIZES,
        {
            name: [1e6 * form(each, ranks, link).seconds for each in _SIZES]
            for name, form in ALL_REDUCES.items()
        },
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "the library picks another algorithm: its tuning log names it; measure one message of each size",
            "the switch reduces in the network (SHARP): one pass instead of two; set the link's figures by measurement",
        ),
        tables=(table,),
        curve=curve,
    )


TOPIC = Topic(
    name="collectives",
    question="What does an all-reduce cost, and which algorithm wins at which size?",
    source="Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations, 2005",
    uses=("model", "gpu", "tp", "batch", "link"),
    answer=_answer,
    defaults={"tp": "8"},
    extras=(Extra("ranks", Unit.COUNT, "0", "ranks; 0: those of the layout", COUNTED_OR_NONE),),
)
