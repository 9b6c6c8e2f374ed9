"""Long prompts under a TTFT target: the share that must come from the cache, and the two pools it takes.

TTFT(warm) = prefill of (1 - warm) x prompt behind warm x prompt of cached tokens
the warm share needed is where that meets the target (bisection; prefill falls as more is warm)
prefill GPUs = rate x prefill time of what is cold x GPUs of a replica / utilisation
decode GPUs  = rate x output x step / batch, with the batch that KV memory and TPOT allow
"""

from math import ceil

from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.units import Unit, show

_SHARES = tuple(n / 20 for n in range(21))


def _cold_s(inputs: PlanInputs, warm: float) -> float:
    tokens = max(1.0, inputs.prompt_tokens * (1 - warm))
    batch = prompt_batch(tokens, cached_tokens=inputs.prompt_tokens - tokens)
    return inputs.step_model().step_s(batch) / inputs.extras["mfu"]


def _warm_needed(inputs: PlanInputs) -> float:
    if _cold_s(inputs, 0.0) <= inputs.ttft_s:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _cold_s(inputs, middle) <= inputs.ttft_s else (middle, high)
    return high


def _decode_rows(inputs: PlanInputs, context: float) -> int:
    """The most that memory holds and the TPOT target allows; at least one."""
    held = inputs.model.parameters * inputs.formats.weights.bytes_per_element
    left = inputs.gpu.memory_bytes * inputs.layout.gpus * 0.9 - held
    rows = max(1, int(left / inputs.model.kv_bytes(context, inputs.formats.kv)))
    model = inputs.step_model()
    while rows > 1 and model.step_s(decode_batch(rows, context)) > inputs.tpot_s:
        rows -= max(1, rows // 50)
    return rows


def _answer(inputs: PlanInputs) -> Plan:
    cold_s, warm = _cold_s(inputs, 0.0), _warm_needed(inputs)
    expected = max(warm, inputs.extras["warm"])
    prefill_s, context = _cold_s(inputs, expected), inputs.prompt_tokens + inputs.output_tokens / 2
    rows = _decode_rows(inputs, context)
    step_s = inputs.step_model().step_s(decode_batch(rows, context))
    gpus, load = inputs.layout.gpus, inputs.extras["utilisation"]
    prefill_gpus = gpus * ceil(inputs.rate_per_s * prefill_s / load)
    decode_gpus = gpus * ceil(inputs.rate_per_s * inputs.output_tokens * step_s / rows / load)
    kv = inputs.model.kv_bytes(inputs.prompt_tokens, inputs.formats.kv)
    answers = (
        Answer(
            "TTFT, all cold",
            cold_s,
            Unit.SECONDS,
            f"{inputs.prompt_tokens} tokens on {inputs.layout} at {inputs.extras['mfu']:.0%} of the floor's speed",
        ),
        Answer(
            "warm share needed",
            warm,
            Unit.RATIO,
            f"prefill of the rest takes {show(_cold_s(inputs, warm), Unit.SECONDS)}, target "
            f"{show(inputs.ttft_s, Unit.SECONDS)}",
        ),
        Answer("warm share planned with", expected, Unit.RATIO, "the larger of needed and expected"),
        Answer("prefill of the rest", prefill_s, Unit.SECONDS, "with that share warm"),
        Answer("KV of a prompt", kv, Unit.BYTES, "what must be kept somewhere to be warm"),
        Answer(
            "sequences of a decode replica",
            rows,
            Unit.SEQUENCES,
            f"memory, and TPOT {show(step_s, Unit.SECONDS)}",
        ),
        Answer(
            "prefill GPUs",
            prefill_gpus,
            Unit.COUNT,
            f"{gpus} x ceil({inputs.rate_per_s:.3g}/s x {show(prefill_s, Unit.SECONDS)} / {load:.0%})",
        ),
        Answer(
            "decode GPUs",
            decode_gpus,
            Unit.COUNT,
            f"{gpus} x ceil({inputs.rate_per_s:.3g}/s x {inputs.output_tokens} x {show(step_s, Unit.SECONDS)} / {rows} "
            f"/ {load:.0%})",
        ),
        Answer("GPUs", prefill_gpus + decode_gpus, Unit.COUNT, "both pools"),
        Answer(
            "KV to keep warm a second",
            inputs.rate_per_s * kv * expected,
            Unit.BYTES_PER_S,
            "what arrivals re-read from the cache tiers",
        ),
    )
    curve = Curve(
        "TTFT by warm share",
        "warm share",
        "TTFT (s)",
        _SHARES,
        {"prefill": [_cold_s(inputs, share) for share in _SHARES], "target": [inputs.ttft_s] * len(_SHARES)},
    )
    return Plan(
        answers,
        breaks_when=(
            "warmth is not spread evenly: cold prompts miss the target "
            "however warm the average; see TTFT by cached share",
            "prefill queues: at this utilisation the p99 is above the mean; `ridgeline plan utilisation` prices it",
        ),
        curve=curve,
        totals=(Total("GPUs", ("prefill GPUs", "decode GPUs")),),
    )


TOPIC = Topic(
    name="long-context",
    question="How much of a long prompt must be warm to meet a TTFT target, and how large are the two pools?",
    source="first principles over the step model; two pools as in DistServe, 2024",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "ttft", "tpot", "rate"),
    answer=_answer,
    defaults={"prompt": "64k", "output": "500", "ttft": "2s", "rate": "2/s", "tp": "8"},
    extras=(
        Extra("mfu", Unit.RATIO, "60%", "share of the floor's speed that prefill reaches"),
        Extra("warm", Unit.RATIO, "50%", "share that the cache is expected to hold"),
        Extra("utilisation", Unit.RATIO, "70%", "busy share that the pools are sized for"),
    ),
)
