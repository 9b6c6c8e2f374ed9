"""KV from a prefill worker to a decode worker: bytes, the bandwidth that keeps up, and the delay before decode.

bandwidth to keep up = KV bytes of a prompt / prefill time of it = KV bytes a token x prefill tokens/s
(the prompt's length cancels, until attention's share grows)
delay = what is left when the last layer has been computed: one layer's KV, pulled layer by layer,
        or the whole prompt's, pulled at the end
"""

from ridgeline_roofline.plan.answer import Answer, Curve, Plan
from ridgeline_roofline.plan.bounds import COUNTED_OR_NONE, PART
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_PROMPTS = (500, 1000, 2000, 4000, 8000, 16000, 32000, 64000)


def _answer(inputs: PlanInputs) -> Plan:
    spec, model = inputs.model, inputs.step_model()
    kv_bytes = spec.kv_bytes(inputs.prompt_tokens, inputs.formats.kv)
    prefill_s = model.step_s(prompt_batch(inputs.prompt_tokens)) / inputs.extras["mfu"]
    senders = inputs.layout.gpus
    rate = senders * inputs.link.bytes_per_s * inputs.extras["efficiency"]
    receivers = int(inputs.extras["receivers"]) or senders
    pull_rate = min(rate, receivers * inputs.link.bytes_per_s * inputs.extras["efficiency"])
    needed = kv_bytes / prefill_s
    whole_s = kv_bytes / pull_rate
    layers = max(1, sum(count for count, _ in spec.mixers()))
    # While a layer computes, the one before is pulled; a pull that is slower than compute adds the difference.
    layered_s = whole_s / layers + max(0.0, whole_s - prefill_s) * (layers - 1) / layers
    side = "the receiving side" if receivers < senders else "neither side alone: both have the same NICs"
    answers = (
        Answer(
            "KV bytes of the prompt",
            kv_bytes,
            Unit.BYTES,
            f"{inputs.prompt_tokens} tokens x {kv_bytes / inputs.prompt_tokens:,.0f} bytes a token",
        ),
        Answer(
            "prefill",
            prefill_s,
            Unit.SECONDS,
            f"{inputs.prompt_tokens} tokens on {inputs.layout} at {inputs.extras['mfu']:.0%} of the floor's speed",
        ),
        Answer(
            "bandwidth to keep up",
            needed,
            Unit.BYTES_PER_S,
            f"{show(kv_bytes, Unit.BYTES)} / {show(prefill_s, Unit.SECONDS)}: hardly moved by the prompt's length",
        ),
        Answer(
            "bandwidth there is",
            pull_rate,
            Unit.BYTES_PER_S,
            f"min({senders} sending, {receivers} receiving) NICs x {show(inputs.link.bytes_per_s, Unit.BYTES_PER_S)} x "
            f"{inputs.extras['efficiency']:.0%}",
        ),
        Answer(
            "share of the link",
            needed / pull_rate,
            Unit.RATIO,
            "needed / there is: above 1 the link is the limit",
        ),
        Answer("saturates first", side, Unit.TEXT, f"{senders} NICs send, {receivers} receive"),
        Answer(
            "delay, layer by layer",
            layered_s,
            Unit.SECONDS,
            f"1 of {layers} layers after the last is computed, and what the link falls behind",
        ),
        Answer("delay, all at the end", whole_s, Unit.SECONDS, f"{show(kv_bytes, Unit.BYTES)} / bandwidth"),
        Answer(
            "recompute instead",
            prefill_s,
            Unit.SECONDS,
            "what the decode worker would need to prefill by itself: move the KV while the delay is below it",
        ),
    )
    needs = [
        spec.kv_bytes(tokens, inputs.formats.kv)
        / (model.step_s(prompt_batch(tokens)) / inputs.extras["mfu"])
        / 1e9
        for tokens in _PROMPTS
    ]
    curve = Curve(
        "bandwidth to keep up with prefill",
        "prompt (tokens)",
        "GB/s",
        _PROMPTS,
        {"needed": needs, "there is": [pull_rate / 1e9] * len(_PROMPTS)},
        x_logarithmic=True,
    )
    return Plan(
        answers,
        breaks_when=(
            "blocks are small and many: each costs a descriptor; compare bytes/s of the transfer metric with the link",
            "several prefill workers send to one decode worker at once: its NICs are shared; watch its receive rate",
            "a prompt is mostly cached on the decode side: only the rest has to move",
        ),
        curve=curve,
    )


TOPIC = Topic(
    name="transfer",
    question="Can KV move from prefill to decode workers without anybody waiting for it?",
    source="first principles; Patel et al., Splitwise, 2024, for the layer-wise pull",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "link"),
    answer=_answer,
    defaults={"tp": "8", "prompt": "8k"},
    extras=(
        Extra("mfu", Unit.RATIO, "60%", "share of the floor's speed that prefill reaches", PART),
        Extra("efficiency", Unit.RATIO, "85%", "share of the link's rate that transfers reach", PART),
        Extra("receivers", Unit.COUNT, "0", "NICs on the decode side; 0: as many as send", COUNTED_OR_NONE),
    ),
)
