"""CUDA graphs: which batch sizes to capture, priced in KV pages and in the time that rounding up costs.

a graph keeps its own buffers: activations of its batch, and some fixed memory
a step of batch b runs as the next captured size; uncaptured it pays a gap for each launch
"""

from collections.abc import Sequence

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Value
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.units import Unit, show

_BLOCK_TOKENS = 16


def captured_sizes(policy: str, largest: int) -> tuple[int, ...]:
    """Batch sizes of a policy: none, few (powers of two), all (1, 2, 4 and every 8)."""
    if policy == "none":
        return ()
    powers = {2**n for n in range(largest.bit_length()) if 2**n <= largest} | {largest}
    if policy == "few":
        return tuple(sorted(powers))
    return tuple(sorted({1, 2, 4, largest} | set(range(8, largest + 1, 8))))


def _answer(inputs: PlanInputs) -> Plan:
    model, largest = inputs.step_model(), inputs.batch
    gap_s, fixed = inputs.extras["launch"], inputs.extras["graph"]
    launches = int(model.step(decode_batch(1, inputs.context_tokens)).total("launches"))
    page = inputs.model.kv_bytes(_BLOCK_TOKENS, inputs.formats.kv) / inputs.layout.tp
    sizes = tuple(range(1, largest + 1))
    exact = {rows: model.step_s(decode_batch(rows, inputs.context_tokens)) for rows in sizes}
    weights_rows = {rows: model.step_s(decode_batch(rows, 1)) for rows in sizes}

    def padded_s(rows: int, captured: Sequence[int]) -> float:
        """Padding rows read no KV: they cost what a row without context costs."""
        size = next((size for size in captured if size >= rows), None)
        if size is None:
            return exact[rows] + launches * gap_s
        return exact[rows] + max(0.0, weights_rows[size] - weights_rows[rows])

    def row(policy: str) -> tuple[Value, ...]:
        captured = captured_sizes(policy, largest)
        # Graphs of one pool share activations: the largest batch's are enough.
        memory = len(captured) * fixed
        mean_s = sum(padded_s(rows, captured) for rows in sizes) / len(sizes)
        return (policy, len(captured), memory, memory / page, mean_s, mean_s / mean_exact_s - 1)

    mean_exact_s = sum(exact.values()) / len(exact)
    rows = tuple(row(policy) for policy in ("none", "few", "all"))
    best = min(
        rows, key=lambda each: float(each[4]) * (1 + inputs.extras["page_value"] * float(each[3]) / 1000)
    )
    worst = max(sizes, key=lambda rows: padded_s(rows, captured_sizes("few", largest)) / exact[rows])
    worst_ratio = padded_s(worst, captured_sizes("few", largest)) / exact[worst]
    answers = (
        Answer("launches a step", launches, Unit.COUNT, "operators of all layers, one launch each"),
        Answer(
            "gap without graphs",
            launches * gap_s,
            Unit.SECONDS,
            f"{launches} x {show(gap_s, Unit.SECONDS)}",
        ),
        Answer(
            "memory of a KV page",
            page,
            Unit.BYTES,
            f"{_BLOCK_TOKENS} tokens on one of {inputs.layout.tp} ranks",
        ),
        Answer(
            "pages that few sizes cost",
            float(rows[1][3]),
            Unit.COUNT,
            f"{rows[1][1]} graphs x {show(fixed, Unit.BYTES)}",
        ),
        Answer(
            "pages that all sizes cost",
            float(rows[2][3]),
            Unit.COUNT,
            f"{rows[2][1]} graphs x {show(fixed, Unit.BYTES)}",
        ),
        Answer("worst batch to round up", worst, Unit.SEQUENCES, "under few sizes"),
        Answer("cost of rounding there", worst_ratio - 1, Unit.RATIO, "padded step / exact step - 1"),
        Answer(
            "policy", str(best[0]), Unit.TEXT, "least mean step time, with 1,000 pages priced by page_value"
        ),
    )
    table = Table(
        f"Policies, batches 1 to {largest} equally likely",
        ("policy", "graphs", "memory", "KV pages", "mean step", "over exact"),
        (Unit.TEXT, Unit.COUNT, Unit.BYTES, Unit.COUNT, Unit.SECONDS, Unit.RATIO),
        rows,
    )
    curve = Curve(
        "step by batch, few sizes captured",
        "batch",
        "step (ms)",
        sizes,
        {
            "exact": [1e3 * exact[n] for n in sizes],
            "rounded up": [1e3 * padded_s(n, captured_sizes("few", largest)) for n in sizes],
        },
    )
    return Plan(
        answers,
        breaks_when=(
            "batches are not equally likely: weigh the table by the batch histogram of the worker",
            "padding rows do read KV (some kernels give them a real page): compare step_ms of padded and full batches",
        ),
        tables=(table,),
        curve=curve,
    )


TOPIC = Topic(
    name="graphs",
    question="Which batch sizes are worth a captured graph, in KV pages and in milliseconds?",
    source="first principles: gaps saved against memory and padding",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context"),
    answer=_answer,
    defaults={"tp": "8", "batch": "64", "context": "2k"},
    extras=(
        Extra("launch", Unit.SECONDS, "4us", "gap that a launch leaves without a graph"),
        Extra("graph", Unit.BYTES, "40MB", "memory that one captured size keeps on a GPU"),
        Extra("page_value", Unit.RATIO, "1%", "step time that 1,000 more KV pages are worth"),
    ),
)
