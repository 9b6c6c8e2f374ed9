"""Recompute, swap to the host, or make the newcomer wait: the cheapest for this victim, in milliseconds.

recompute = prefill of the victim's tokens that the cache will not hold
swap      = 2 x KV bytes / copy bandwidth
wait      = output x step / (batch + 1): the next of the running sequences to end
"""

from ridgeline_roofline.decisions.preemption import PreemptionFacts, preemption_choice, preemption_costs_ms
from ridgeline_roofline.plan.answer import Answer, Curve, Plan
from ridgeline_roofline.plan.bounds import PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch
from ridgeline_roofline.units import Unit, show

_CONTEXTS = (500, 1000, 2000, 4000, 8000, 16000, 32000, 64000)


def _facts(inputs: PlanInputs, tokens: int, wait_ms: float) -> PreemptionFacts:
    rate = inputs.layout.gpus * inputs.gpu.host_link.value * inputs.extras["copy_ratio"]
    return PreemptionFacts(
        victim_tokens=tokens,
        kept_tokens=int(tokens * inputs.extras["kept"]),
        swap_bytes=int(inputs.model.kv_bytes(tokens, inputs.formats.kv)),
        copy_bytes_per_ms=rate / 1e3,
        wait_ms=wait_ms,
    )


def _answer(inputs: PlanInputs) -> Plan:
    model, tokens = inputs.step_model(), inputs.context_tokens
    step_s = model.step_s(decode_batch(inputs.batch, tokens))
    # The next of `batch` sequences to end, each half-way through its output on average.
    wait_s = inputs.output_tokens * step_s / (inputs.batch + 1)
    facts = _facts(inputs, tokens, wait_s * 1e3)
    decided = preemption_choice(model, facts)
    costs = preemption_costs_ms(model, facts)
    payer = {"recompute": "the victim, and all whose steps carry its prefill", "swap": "the victim"}
    answers = (
        Answer("KV of the victim", float(facts.swap_bytes or 0), Unit.BYTES, f"{tokens} tokens"),
        *(
            Answer(f"{kind.value}", cost / 1e3, Unit.SECONDS, "as the engine prices it for this victim")
            for kind, cost in costs.items()
        ),
        Answer("choice", decided.value.value, Unit.TEXT, decided.derivation),
        Answer(
            "who pays", payer.get(decided.value.value, "the newcomer"), Unit.TEXT, "whose tokens come later"
        ),
        Answer("step", step_s, Unit.SECONDS, f"{inputs.batch} rows at {tokens} tokens"),
        Answer(
            "expected wait for blocks",
            wait_s,
            Unit.SECONDS,
            f"{inputs.output_tokens} x {show(step_s, Unit.SECONDS)} / ({inputs.batch} + 1)",
        ),
    )
    found = {n: preemption_costs_ms(model, _facts(inputs, n, wait_s * 1e3)) for n in _CONTEXTS}
    curve = Curve(
        "cost by the victim's length",
        "tokens",
        "ms",
        _CONTEXTS,
        {kind.value: [found[n][kind] for n in _CONTEXTS] for kind in costs},
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "the prefix cache keeps the victim's blocks: recomputing "
            "is then nearly free; see hit tokens after preemptions",
            "swaps of several victims share the host link: each takes longer; see preemptions by kind and their times",
        ),
        curve=curve,
    )


TOPIC = Topic(
    name="preemption",
    question="When the pool is full: recompute a victim, swap it out, or let the newcomer wait?",
    source="Kwon et al., PagedAttention, 2023, section 4.5",
    uses=("model", "gpu", "tp", "weights", "kv", "batch", "context", "output"),
    answer=_answer,
    defaults={"tp": "8", "context": "4k", "batch": "64"},
    extras=(
        Extra(
            "kept",
            Unit.RATIO,
            "0%",
            "share of the victim's tokens that the prefix cache will still hold",
            SHARE,
        ),
        Extra("copy_ratio", Unit.RATIO, "60%", "share of the host link that block copies reach", PART),
    ),
)
