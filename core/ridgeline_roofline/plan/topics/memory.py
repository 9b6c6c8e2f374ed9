"""Where a GPU's memory goes, in the order in which an engine takes it, and how many sequences are left.

weights, context, activation peak, graphs, collective buffers, then KV
the number of sequences is a ceiling: all at their mean length, no fragmentation, nothing preempted
"""

from dataclasses import dataclass, replace

from ridgeline_roofline.catalogue.formats import Dtype, Formats
from ridgeline_roofline.catalogue.mixers import Attention
from ridgeline_roofline.catalogue.model_spec import DenseMlp, ModelSpec
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Total, Value
from ridgeline_roofline.plan.bounds import PART, POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.residence import sequence_bytes, weight_bytes
from ridgeline_roofline.units import Unit, show


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Of one GPU. A `measured` line comes from figures that were measured or are exact; others are guesses."""

    name: str
    size_bytes: float
    measured: bool
    working: str


def rank_kv_bytes(inputs: PlanInputs, context_tokens: float) -> float:
    """KV of one sequence on one GPU, copies of KV heads included."""
    return sequence_bytes(inputs.model, inputs.layout, inputs.formats, context_tokens)


def _widest(spec: ModelSpec) -> int:
    """Values that one token needs at once: residual twice, and the widest operator's in and out."""
    widths = [0]
    for group in spec.groups:
        if isinstance(group.mlp, DenseMlp):
            widths.append(3 * group.mlp.ffn)
        elif group.mlp is not None:
            widths.append(3 * (group.mlp.top_k * group.mlp.expert_ffn + group.mlp.shared_ffn))
        if isinstance(group.mixer, Attention):
            widths.append((2 * group.mixer.heads + 2 * group.mixer.kv_heads) * group.mixer.head_dim)
    return max(widths)


def ledger(inputs: PlanInputs) -> tuple[LedgerLine, ...]:
    """The lines before KV, in order."""
    spec, layout, extras = inputs.model, inputs.layout, inputs.extras
    element = inputs.formats.activations.bytes_per_element
    held = weight_bytes(spec, layout, inputs.formats)
    step = extras["step"]
    activations = step * (4 * spec.hidden + _widest(spec) / layout.tp) * element
    logits = inputs.batch * spec.vocab_tokens * 4 * 3
    buffers = 0.0 if layout.gpus == 1 else 2 * step * spec.hidden * element + extras["channels"]
    return (
        LedgerLine("weights", held, True, f"{spec.parameters:,} parameters on {layout}"),
        LedgerLine("context", extras["runtime"], False, "device context, libraries, kernels"),
        LedgerLine(
            "activation peak",
            activations + logits,
            False,
            f"{step:.0f} tokens a step, {inputs.batch} rows of logits",
        ),
        LedgerLine("graphs", extras["graphs"], False, "captured decode batches"),
        LedgerLine(
            "collective buffers",
            buffers,
            False,
            "two messages of the largest step, and the library's channels",
        ),
    )


def _sequences(inputs: PlanInputs) -> float:
    left = inputs.gpu.memory_bytes * inputs.extras["usable"] - sum(line.size_bytes for line in ledger(inputs))
    return inputs.layout.dp * left / rank_kv_bytes(inputs, inputs.context_tokens)


def smallest_change(inputs: PlanInputs) -> tuple[str, float]:
    """(what to change, sequences it gives): the first of these that holds the asked batch, mildest first."""
    wanted = inputs.batch
    kv8 = replace(inputs, formats=replace(inputs.formats, kv=Dtype.FP8))
    w8 = replace(inputs, formats=Formats(Dtype.FP8, inputs.formats.kv, Dtype.FP8))
    both = replace(w8, formats=replace(w8.formats, kv=Dtype.FP8))
    changes = [("nothing", inputs), ("kv=fp8", kv8), ("weights=fp8", w8), ("weights=fp8 kv=fp8", both)]
    heads = [mixer.heads for _, mixer in inputs.model.mixers()]
    for tp in (2, 4, 8, 16):
        if tp > inputs.layout.tp and all(count % tp == 0 for count in heads):
            changes.append((f"tp={tp}", replace(inputs, layout=replace(inputs.layout, tp=tp))))
    for name, changed in changes:
        if _sequences(changed) >= wanted:
            return name, _sequences(changed)
    return "a smaller batch or a shorter context", _sequences(inputs)


def _answer(inputs: PlanInputs) -> Plan:
    lines, gpu = ledger(inputs), inputs.gpu
    taken = sum(line.size_bytes for line in lines)
    usable = gpu.memory_bytes * inputs.extras["usable"]
    pool = max(0.0, usable - taken)
    one = rank_kv_bytes(inputs, inputs.context_tokens)
    change, count = smallest_change(inputs)
    unused = gpu.memory_bytes - max(usable, taken)
    answers = (
        *(
            Answer(
                line.name,
                line.size_bytes,
                Unit.BYTES,
                f"{'measured' if line.measured else 'guessed'}: {line.working}",
            )
            for line in lines
        ),
        Answer(
            "KV pool",
            pool,
            Unit.BYTES,
            f"{inputs.extras['usable']:.0%} of {show(gpu.memory_bytes, Unit.BYTES)} - the rest",
        ),
        Answer("left alone", unused, Unit.BYTES, "what the share leaves to others"),
        Answer(
            "total",
            taken + pool + unused,
            Unit.BYTES,
            "sum of all lines, in the order in which they are taken",
        ),
        Answer(
            "KV bytes a token",
            rank_kv_bytes(inputs, inputs.context_tokens) / inputs.context_tokens,
            Unit.BYTES_PER_TOKEN,
            f"on one of {inputs.layout.gpus} GPUs, at {inputs.context_tokens} tokens",
        ),
        Answer(
            "KV of a prompt",
            inputs.model.kv_bytes(inputs.prompt_tokens, inputs.formats.kv),
            Unit.BYTES,
            f"{inputs.prompt_tokens} tokens, all GPUs together, no copies",
        ),
        Answer("KV tokens", pool / one * inputs.context_tokens, Unit.TOKENS, "that the pool holds"),
        Answer(
            "sequences, a ceiling",
            float(int(pool / one)),
            Unit.SEQUENCES,
            f"{show(pool, Unit.BYTES)} / {show(one, Unit.BYTES)}: all at {inputs.context_tokens} tokens, nothing lost",
        ),
        Answer(
            "smallest change for the batch",
            change,
            Unit.TEXT,
            f"gives {count:.1f} sequences; {inputs.batch} are asked for",
        ),
    )
    rows: list[tuple[Value, ...]] = []
    for tokens in (1000, 4000, 16000, 64000):
        rows.append((tokens, rank_kv_bytes(inputs, tokens), float(int(pool / rank_kv_bytes(inputs, tokens)))))
    table = Table(
        "By length",
        ("context", "KV a GPU", "sequences"),
        (Unit.TOKENS, Unit.BYTES, Unit.SEQUENCES),
        tuple(rows),
    )
    parts = (*(line.name for line in lines), "KV pool", "left alone")
    return Plan(
        answers,
        breaks_when=(
            "a guessed line is wrong: the worker prints its ledger "
            "at start with what it measured; compare line by line",
            "lengths vary and blocks are whole: sequences stay below the ceiling; see KV used and preemptions",
        ),
        tables=(table,),
        totals=(Total("total", parts),),
    )


TOPIC = Topic(
    name="memory",
    question="Where does a GPU's memory go, and how many sequences fit?",
    source="first principles; Kwon et al., PagedAttention, 2023, for the pool",
    uses=("model", "gpu", "tp", "pp", "weights", "kv", "batch", "context", "prompt"),
    answer=_answer,
    defaults={"tp": "4", "prompt": "8192", "context": "4k"},
    extras=(
        Extra("usable", Unit.RATIO, "92%", "share of the memory that the engine may take", PART),
        Extra("step", Unit.TOKENS, "8192", "largest step, in tokens", POSITIVE),
        Extra("runtime", Unit.BYTES, "600MB", "device context and libraries"),
        Extra("graphs", Unit.BYTES, "1GB", "captured graphs"),
        Extra("channels", Unit.BYTES, "200MB", "buffers of the collective library"),
    ),
)
