"""Pipeline stages: no faster token, but less to hold and less to reduce.

a token passes all stages: its latency is the sum of the stages and of pp - 1 hand-overs
m micro-batches fill the pipe: throughput of m / (m + pp - 1) of the ideal; the rest is the bubble
against TP over as many GPUs: PP wins where an all-reduce costs more than what splitting saves
"""

from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import COUNTED
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.collectives import CollectiveKind
from ridgeline_roofline.step.layout import Layout, check_layout
from ridgeline_roofline.step.timing import StepTime
from ridgeline_roofline.units import Unit, show


def _reduces(step: StepTime) -> float:
    return sum(each.op.launches for each in step.ops if each.op.collective is CollectiveKind.ALL_REDUCE)


def _answer(inputs: PlanInputs) -> Plan:
    layout, micro = inputs.layout, int(inputs.extras["micro"])
    rows = inputs.batch / micro
    step = inputs.step_model().step(decode_batch(rows, inputs.context_tokens))
    hand_s = sum(each.collectives_s for each in step.ops if each.op.collective is CollectiveKind.SEND)
    stages_s = step.seconds - hand_s
    stage_s = step.seconds / layout.pp
    bubble = (layout.pp - 1) / (micro + layout.pp - 1)
    # Decode needs each token before its next: a micro-batch comes round after all others have passed.
    round_s = max(step.seconds, micro * stage_s)
    wide = Layout(tp=layout.tp * layout.pp, ep=layout.ep, dp=layout.dp)
    check_layout(inputs.model, wide)
    other = inputs.step_model(layout=wide).step(decode_batch(inputs.batch, inputs.context_tokens))
    count, link = _reduces(other), inputs.fabric.link_over(wide.tp)
    size = inputs.batch * inputs.model.hidden * inputs.formats.activations.bytes_per_element
    one = inputs.fabric.all_reduce(size, wide.tp)
    work_s = other.seconds - sum(each.collectives_s for each in other.ops)
    break_even_s = (round_s - work_s) / count if count else 0.0
    held = inputs.model.parameters * inputs.formats.weights.bytes_per_element
    answers = (
        Answer(
            "stages", stages_s, Unit.SECONDS, f"{layout.pp} stages of {layout.tp} ranks, one after the other"
        ),
        Answer("hand-overs", hand_s, Unit.SECONDS, f"{layout.pp - 1} x rows of {inputs.model.hidden} values"),
        Answer(
            "a token's latency",
            stages_s + hand_s,
            Unit.SECONDS,
            f"sum of both, for a micro-batch of {rows:g} rows",
        ),
        Answer(
            "time per output token", round_s, Unit.SECONDS, f"max(latency, {micro} micro-batches x one stage)"
        ),
        Answer(
            "bubble",
            bubble,
            Unit.RATIO,
            f"({layout.pp} - 1) / ({micro} + {layout.pp} - 1): a pass of {micro} micro-batches",
        ),
        Answer(
            "tokens a second",
            inputs.batch / round_s,
            Unit.TOKENS_PER_S,
            f"{inputs.batch} / {show(round_s, Unit.SECONDS)}",
        ),
        Answer(
            "weights a GPU",
            held / layout.gpus,
            Unit.BYTES,
            "what it buys: the same as TP over all, without its all-reduces",
        ),
        Answer(
            "TP over all instead",
            other.seconds,
            Unit.SECONDS,
            f"{wide} over {link.link_id}: {count:.0f} all-reduces",
        ),
        Answer(
            "an all-reduce there", one.seconds, Unit.SECONDS, f"{one.algorithm}, {show(size, Unit.BYTES)}"
        ),
        Answer(
            "PP wins from an all-reduce of",
            max(0.0, break_even_s),
            Unit.SECONDS,
            f"({show(round_s, Unit.SECONDS)} - {show(work_s, Unit.SECONDS)} without all-reduces) / {count:.0f}",
        ),
        Answer(
            "faster token",
            f"PP{layout.pp}" if round_s < other.seconds else f"TP{wide.tp}",
            Unit.TEXT,
            "the shorter time per output token",
        ),
    )
    rows_table: list[tuple[Value, ...]] = []
    for count_micro in (1, 2, 4, 8, 16):
        if count_micro > inputs.batch:
            break
        at = inputs.step_model().step_s(decode_batch(inputs.batch / count_micro, inputs.context_tokens))
        through = max(at, count_micro * at / layout.pp)
        rows_table.append((count_micro, at, through, inputs.batch / through))
    table = Table(
        "By micro-batches",
        ("micro-batches", "latency", "time per token", "tokens a second"),
        (Unit.COUNT, Unit.SECONDS, Unit.SECONDS, Unit.TOKENS_PER_S),
        tuple(rows_table),
    )
    return Plan(
        answers,
        breaks_when=(
            "stages are unequal (the output matrix, the embedding): the slowest sets the pace; see step time by stage",
            "micro-batches read the weights again each: at small batches m of them cost m times; see the table",
        ),
        tables=(table,),
        totals=(Total("a token's latency", ("stages", "hand-overs")),),
    )


TOPIC = Topic(
    name="pp",
    question="What do pipeline stages buy, and when do they beat tensor parallelism across nodes?",
    source="Huang et al., GPipe, 2019; Narayanan et al., 2021, section 2.2, for the bubble",
    uses=("model", "gpu", "tp", "pp", "weights", "kv", "batch", "context", "link"),
    answer=_answer,
    defaults={"model": "llama-3.1-405b", "tp": "8", "pp": "2", "context": "4k"},
    extras=(Extra("micro", Unit.COUNT, "2", "micro-batches in flight", COUNTED),),
)
