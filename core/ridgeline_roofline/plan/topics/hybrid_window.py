"""What layers with a window or a recurrent state save of the KV, and what they cost at a restart.

KV(context) = full layers x context + window layers x min(context, window), each x bytes a token and layer
a recurrent layer keeps one state a sequence; a prefix can be restored only where a copy of it was kept
"""

from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention, Recurrent
from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.bounds import POSITIVE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.ops import STATE_BYTES
from ridgeline_roofline.units import Unit, show

_CONTEXTS = (128, 512, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)


def _answer(inputs: PlanInputs) -> Plan:
    spec, element, context = inputs.model, inputs.formats.kv.bytes_per_element, inputs.context_tokens
    attending = [(n, m) for n, m in spec.mixers() if isinstance(m, Attention | LatentAttention)]
    windowed = [(n, m) for n, m in attending if m.window_tokens is not None]
    full_layers = sum(n for n, m in attending if m.window_tokens is None)
    window_layers = sum(n for n, _ in windowed)
    recurrent_layers = sum(n for n, m in spec.mixers() if isinstance(m, Recurrent))
    window = max((m.window_tokens or 0 for _, m in windowed), default=0)

    def part(tokens: float, *, window_only: bool) -> float:
        return sum(
            n * m.kv_elements_per_token * element * m.seen_tokens(tokens)
            for n, m in attending
            if (m.window_tokens is not None) == window_only
        )

    def unfreed(tokens: float) -> float:
        return spec.kv_elements_per_token * element * tokens

    full, slid = part(context, window_only=False), part(context, window_only=True)
    state = spec.state_elements * STATE_BYTES
    resident = full + slid + state
    # If every mixing layer were full attention of the kind that the model has.
    model_layer = attending[0][1].kv_elements_per_token * element if attending else 0
    all_full = (full_layers + window_layers + recurrent_layers) * model_layer * context
    every = inputs.extras["checkpoint"]
    checkpoints = context / every if recurrent_layers else 0.0
    answers = (
        Answer("full layers", full_layers, Unit.COUNT, "attend to everything"),
        Answer("window layers", window_layers, Unit.COUNT, f"see the last {window} tokens"),
        Answer("recurrent layers", recurrent_layers, Unit.COUNT, "keep a state of fixed size"),
        Answer("KV of full layers", full, Unit.BYTES, f"{full_layers} layers x {context} tokens"),
        Answer(
            "KV of window layers",
            slid,
            Unit.BYTES,
            f"{window_layers} layers x min({context}, {window}) tokens",
        ),
        Answer("recurrent state", state, Unit.BYTES, f"{spec.state_elements:,} FP32 values a sequence"),
        Answer("resident", resident, Unit.BYTES, "sum of the three"),
        Answer(
            "without freeing windows",
            unfreed(context) + state,
            Unit.BYTES,
            f"all {full_layers + window_layers} layers x {context} tokens",
        ),
        Answer(
            "saved by freeing",
            1 - resident / (unfreed(context) + state),
            Unit.RATIO,
            "1 - resident / without freeing; its limit is the share of window layers",
        ),
        Answer(
            "all layers full",
            all_full,
            Unit.BYTES,
            "the same depth with full attention in every mixing layer",
        ),
        Answer(
            "state checkpoints",
            checkpoints * state,
            Unit.BYTES,
            f"{checkpoints:.3g} copies of {show(float(state), Unit.BYTES)}, one every {every:.0f} tokens",
        ),
        Answer(
            "recomputed at a hit",
            every / 2 if recurrent_layers else 0.0,
            Unit.TOKENS,
            "half the distance between checkpoints, on average: every layer restarts where all can be restored",
        ),
    )
    curve = Curve(
        "KV of one sequence",
        "context (tokens)",
        "MB",
        _CONTEXTS,
        {
            "windows freed": [spec.kv_bytes(c, inputs.formats.kv) / 1e6 for c in _CONTEXTS],
            "windows kept": [(unfreed(c) + state) / 1e6 for c in _CONTEXTS],
        },
    )
    return Plan(
        answers,
        breaks_when=(
            "the allocator keeps whole blocks: a window holds up to one block more; ridgeline's KV used gauge shows it",
            "a prefix hit lands behind the window's start: blocks before it are needed; see hit tokens",
        ),
        curve=curve,
        totals=(Total("resident", ("KV of full layers", "KV of window layers", "recurrent state")),),
    )


TOPIC = Topic(
    name="hybrid-window",
    question="How much KV do window and recurrent layers save at a given context?",
    source="Beltagy et al., Longformer, 2020; Dao and Gu, Mamba-2, 2024",
    uses=("model", "kv", "context"),
    answer=_answer,
    defaults={"model": "gpt-oss-120b", "context": "32k", "tp": "1", "gpu": "b200"},
    extras=(
        Extra("checkpoint", Unit.TOKENS, "1024", "tokens between kept copies of recurrent states", POSITIVE),
    ),
)
