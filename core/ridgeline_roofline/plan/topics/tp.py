"""A step on 1, 2, 4, 8 ... ranks: matrices split by columns, then by rows, two all-reduces a layer.

step(n) = what memory and arithmetic take / n (KV until its heads run out) + 2 x layers x all-reduce(n)
the all-reduces have a fixed cost, so doubling the ranks never doubles the speed
"""

from dataclasses import replace

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Table, Total, Value
from ridgeline_roofline.plan.inputs import PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import StepBatch, decode_batch, prompt_batch
from ridgeline_roofline.step.collectives import CollectiveKind
from ridgeline_roofline.step.layout import kv_copies
from ridgeline_roofline.step.ops import Op
from ridgeline_roofline.step.timing import StepTime, collective_time
from ridgeline_roofline.units import Unit, show

_RANKS = (1, 2, 4, 8, 16, 32, 64)
_BATCHES = (1, 4, 16, 64, 256)


def feasible_ranks(inputs: PlanInputs) -> tuple[int, ...]:
    """Powers of two that divide the heads; those too few to hold the weights are left out."""
    heads = [mixer.heads for _, mixer in inputs.model.mixers()]
    held = inputs.model.parameters * inputs.formats.weights.bytes_per_element
    fits = [n for n in _RANKS if all(h % n == 0 for h in heads) and held / n < inputs.gpu.memory_bytes * 0.95]
    return tuple(fits) or (inputs.layout.tp,)


def _step(inputs: PlanInputs, tp: int, batch: StepBatch) -> StepTime:
    return inputs.step_model(layout=replace(inputs.layout, tp=tp)).step(batch)


def _all_reduces(step: StepTime) -> list[Op]:
    return [each.op for each in step.ops if each.op.collective is CollectiveKind.ALL_REDUCE]


def _answer(inputs: PlanInputs) -> Plan:
    batch, prompt = decode_batch(inputs.batch, inputs.context_tokens), prompt_batch(inputs.prompt_tokens)
    ranks = feasible_ranks(inputs)
    step = _step(inputs, inputs.layout.tp, batch)
    reduces = _all_reduces(step)
    count = sum(op.launches for op in reduces)
    fabric = inputs.fabric
    fixed_s = sum(op.launches * collective_time(op, fabric).latency_s for op in reduces)
    moving_s = sum(op.launches * collective_time(op, fabric).transfer_s for op in reduces)
    rest_s = step.seconds - fixed_s - moving_s
    fastest = min(ranks, key=lambda n: _step(inputs, n, batch).seconds)
    cheapest = max(ranks, key=lambda n: inputs.batch / _step(inputs, n, batch).seconds / n)
    size = show(reduces[0].message_bytes, Unit.BYTES) if reduces else "nothing"
    answers = (
        Answer(
            "all-reduces a step",
            count,
            Unit.COUNT,
            "one behind the mixer and one behind the MLP of every layer",
        ),
        Answer("matrices and KV", rest_s, Unit.SECONDS, f"memory and arithmetic on {inputs.layout.tp} ranks"),
        Answer(
            "all-reduces, fixed",
            fixed_s,
            Unit.SECONDS,
            f"{count} x latency over {fabric.link_over(inputs.layout.tp).link_id}",
        ),
        Answer("all-reduces, moving", moving_s, Unit.SECONDS, f"{count} messages of {size} a rank"),
        Answer("step", rest_s + fixed_s + moving_s, Unit.SECONDS, "sum of the three"),
        Answer(
            "KV copies",
            kv_copies(inputs.model, inputs.layout),
            Unit.RATIO,
            "1: none; above, KV heads have run out",
        ),
        Answer("fastest", fastest, Unit.COUNT, f"ranks with the shortest step at batch {inputs.batch}"),
        Answer("most tokens a GPU", cheapest, Unit.COUNT, "ranks with the best tokens/s for each GPU"),
    )
    rows: list[tuple[Value, ...]] = []
    for n in ranks:
        decode_s = _step(inputs, n, batch).seconds
        prefill_s = _step(inputs, n, prompt).seconds
        rows.append(
            (n, decode_s, prefill_s, inputs.batch / decode_s / n, inputs.prompt_tokens / prefill_s / n)
        )
    table = Table(
        f"Batch {inputs.batch} at {inputs.context_tokens} tokens, and a prompt of {inputs.prompt_tokens}",
        ("ranks", "decode step", "prefill", "decode a GPU", "prefill a GPU"),
        (Unit.COUNT, Unit.SECONDS, Unit.SECONDS, Unit.TOKENS_PER_S, Unit.TOKENS_PER_S),
        tuple(rows),
    )
    won: list[tuple[Value, ...]] = []
    for size_rows in _BATCHES:
        at = decode_batch(size_rows, inputs.context_tokens)
        quick = min(ranks, key=lambda n: _step(inputs, n, at).seconds)
        cheap = max(ranks, key=lambda n: 1 / _step(inputs, n, at).seconds / n)
        won.append((size_rows, quick, cheap))
    winners = Table(
        "Who wins where",
        ("batch", "fastest ranks", "most tokens a GPU"),
        (Unit.SEQUENCES, Unit.COUNT, Unit.COUNT),
        tuple(won),
    )
    curve = Curve(
        "step by ranks",
        "ranks",
        "ms",
        ranks,
        {f"batch {inputs.batch}": [1e3 * _step(inputs, n, batch).seconds for n in ranks]},
    )
    return Plan(
        answers,
        breaks_when=(
            "all-reduces overlap with the next matrices: then part "
            "of them is hidden; compare with a trace's exposed time",
            "matrices get too narrow for their tiles at many ranks: "
            "measured steps stop falling; calibrate at that width",
        ),
        tables=(table, winners),
        curve=curve,
        totals=(Total("step", ("matrices and KV", "all-reduces, fixed", "all-reduces, moving")),),
    )


TOPIC = Topic(
    name="tp",
    question="How many ranks should share every matrix, and where does each number win?",
    source="Shoeybi et al., Megatron-LM, 2019, section 3",
    uses=("model", "gpu", "tp", "pp", "weights", "kv", "batch", "context", "prompt", "link"),
    answer=_answer,
    defaults={"tp": "8"},
)
