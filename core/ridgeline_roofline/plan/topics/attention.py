"""Arithmetic intensity of decode attention: FLOPs a byte of KV. The batch does not move it.

every sequence reads its own KV, so rows add bytes and FLOPs alike
MHA, GQA, MQA  4 x heads x d FLOPs a pair / (2 x KV heads x d x bytes) = 2 x (heads / KV heads) / bytes
MLA absorbed   2 x heads x (2 x latent + rope) / ((latent + rope) x bytes)
q query tokens (drafts) read the same KV: times q
"""

from ridgeline_contracts.errors import Unsupported

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.gpus import GPU_IDS, gpu_named
from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import COUNTED
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.ops import step_ops
from ridgeline_roofline.units import Unit


def intensity(
    mixer: Attention | LatentAttention, bytes_per_element: float, *, query_tokens: float = 1.0
) -> float:
    """FLOPs a byte of KV read, whatever the batch and (but for the last few tokens) the context."""
    return query_tokens * mixer.pair_flops / (mixer.kv_elements_per_token * bytes_per_element)


def _of_step(inputs: PlanInputs, rows: int) -> float:
    ops = step_ops(inputs.model, Layout(), decode_batch(rows, inputs.context_tokens), inputs.formats)
    attending = [op for op in ops if op.name in ("attention", "window attention")]
    return sum(op.flops for op in attending) / sum(op.kv_bytes for op in attending)


def _kinds(head_dim: int) -> tuple[tuple[str, Attention | LatentAttention], ...]:
    latent = model_named("deepseek-v3").attention
    assert isinstance(latent, LatentAttention)
    return (
        ("MHA (64 of 64)", Attention(8192, 64, 64, head_dim)),
        ("GQA of 8 (8 of 64)", Attention(8192, 64, 8, head_dim)),
        ("MQA (1 of 64)", Attention(8192, 64, 1, head_dim)),
        ("MLA (DeepSeek V3)", latent),
    )


def _answer(inputs: PlanInputs) -> Plan:
    mixer = inputs.model.attention
    if mixer is None:
        raise Unsupported(f"{inputs.model.model_id} has no attention: give another --model")
    element, drafts = inputs.formats.kv.bytes_per_element, inputs.extras["query_tokens"]
    found = intensity(mixer, element, query_tokens=drafts)
    ridge = inputs.gpu.ridge_flop_per_byte(Dtype.BF16)
    rows: list[tuple[Value, ...]] = []
    for name, kind in _kinds(128):
        bound = [
            gpu_id
            for gpu_id in GPU_IDS
            if intensity(kind, element) >= gpu_named(gpu_id).ridge_flop_per_byte(Dtype.BF16)
        ]
        rows.append((name, intensity(kind, element), " ".join(bound) or "none"))
    group = mixer.heads if isinstance(mixer, LatentAttention) else mixer.heads // mixer.kv_heads
    answers = (
        Answer("kind", mixer.kind, Unit.TEXT, f"{mixer.heads} query heads, {group} on each key"),
        Answer(
            "FLOPs of a pair", mixer.pair_flops, Unit.FLOP, "score and weighted sum, all heads, one layer"
        ),
        Answer(
            "KV bytes of a token",
            mixer.kv_elements_per_token * element,
            Unit.BYTES,
            f"{mixer.kv_elements_per_token} values in {inputs.formats.kv}, one layer",
        ),
        Answer(
            "intensity",
            found,
            Unit.FLOP_PER_BYTE,
            f"{drafts:g} query tokens x {mixer.pair_flops} / {mixer.kv_elements_per_token * element:g}",
        ),
        Answer(
            "intensity at this batch",
            _of_step(inputs, inputs.batch),
            Unit.FLOP_PER_BYTE,
            f"attention operators of a step of {inputs.batch} rows, KV written included",
        ),
        Answer(
            "intensity at twice the batch",
            _of_step(inputs, 2 * inputs.batch),
            Unit.FLOP_PER_BYTE,
            "twice the FLOPs over twice the bytes",
        ),
        Answer("ridge", ridge, Unit.FLOP_PER_BYTE, f"BF16 on {inputs.gpu.gpu_id}"),
        Answer(
            "query tokens to reach the ridge",
            ridge / intensity(mixer, element),
            Unit.TOKENS,
            f"{ridge:.1f} / {intensity(mixer, element):.1f}",
        ),
        Answer("bound by", "compute" if found >= ridge else "memory", Unit.TEXT, "intensity against ridge"),
    )
    table = Table(
        f"Kinds, KV in {inputs.formats.kv}, one query token",
        ("kind", "intensity", "compute-bound on"),
        (Unit.TEXT, Unit.FLOP_PER_BYTE, Unit.TEXT),
        tuple(rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "sequences share a prefix and the kernel reads it once for all: then the batch does raise the intensity",
            "a GQA kernel reads a key head again for every query head: bytes are multiplied; compare DRAM counters",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="attention",
    question="Is decode attention bound by memory, and can a larger batch change that?",
    source="Shazeer, Fast Transformer Decoding, 2019; Ainslie et al., GQA, 2023; DeepSeek-V2, 2024, section 2.1",
    uses=("model", "gpu", "kv", "batch", "context"),
    answer=_answer,
    extras=(
        Extra(
            "query_tokens", Unit.TOKENS, "1", "tokens that a sequence verifies at once: 1 + drafts", COUNTED
        ),
    ),
)
