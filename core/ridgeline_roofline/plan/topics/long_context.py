"""Long prompts under a TTFT target: the share that must come from the cache, and the two pools it takes.

TTFT(warm) = prefill of (1 - warm) x prompt behind warm x prompt of cached tokens
the warm share needed is where that meets the target (bisection; prefill falls as more is warm)
prefill GPUs = rate x prefill time of what is cold x GPUs of a replica / utilisation
decode GPUs  = rate x output x step / batch, with the batch that KV memory and TPOT allow
"""

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.decisions.pool_ratio import PoolFacts, pool_sizes
from ridgeline_roofline.plan.answer import Answer, Curve, Plan, Total
from ridgeline_roofline.plan.bounds import PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.queueing import largest
from ridgeline_roofline.serving import Workload, decode_s, largest_count, memory_rows
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_SHARES = tuple(n / 20 for n in range(21))


def _cold_s(inputs: PlanInputs, warm: float) -> float:
    tokens = max(1.0, inputs.prompt_tokens * (1 - warm))
    batch = prompt_batch(tokens, cached_tokens=inputs.prompt_tokens - tokens)
    return inputs.step_model().step_s(batch) / inputs.extras["efficiency"]


def _warm_needed(inputs: PlanInputs) -> float:
    if _cold_s(inputs, 0.0) <= inputs.ttft_s:
        return 0.0
    return largest(lambda warm: _cold_s(inputs, warm) > inputs.ttft_s, 0.0, 1.0)


def _decode_rows(inputs: PlanInputs, work: Workload) -> int:
    """The most that memory holds and the TPOT target allows; at least one."""
    model, reached = inputs.step_model(), inputs.extras["efficiency"]
    held = memory_rows(model, work)
    if held == 0:
        raise SettingsError(
            f"tp={inputs.layout.tp}: no KV of {work.context_tokens:.0f} tokens fits beside the weights; "
            "give more ranks, smaller weights or a shorter prompt",
            param="tp",
        )
    return max(
        1, largest_count(lambda n: decode_s(model, work, n, efficiency=reached) <= inputs.tpot_s, held)
    )


def _answer(inputs: PlanInputs) -> Plan:
    cold_s, warm = _cold_s(inputs, 0.0), _warm_needed(inputs)
    expected = max(warm, inputs.extras["warm"])
    prefill_s = _cold_s(inputs, expected)
    work = Workload(inputs.prompt_tokens, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s)
    rows = _decode_rows(inputs, work)
    step_s = decode_s(inputs.step_model(), work, rows, efficiency=inputs.extras["efficiency"])
    cold = max(1.0, inputs.prompt_tokens * (1 - expected))
    pools = pool_sizes(
        PoolFacts(
            inputs.rate_per_s,
            cold,
            inputs.output_tokens,
            cold / prefill_s,
            rows / step_s,
            inputs.extras["utilisation"],
        )
    )
    gpus = inputs.layout.gpus
    prefill_gpus, decode_gpus = gpus * pools.value.prefill, gpus * pools.value.decode
    kv = inputs.model.kv_bytes(inputs.prompt_tokens, inputs.formats.kv)
    answers = (
        Answer(
            "TTFT, all cold",
            cold_s,
            Unit.SECONDS,
            f"{inputs.prompt_tokens} tokens on {inputs.layout} at {inputs.extras['efficiency']:.0%} "
            "of the floor's speed",
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
            f"{gpus} x {pools.value.prefill}; {pools.derivation}",
        ),
        Answer(
            "decode GPUs",
            decode_gpus,
            Unit.COUNT,
            f"{gpus} x {pools.value.decode}; see the line above",
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
        Extra("efficiency", Unit.RATIO, "60%", "share of the floor's speed that prefill reaches", PART),
        Extra("warm", Unit.RATIO, "50%", "share that the cache is expected to hold", SHARE),
        Extra("utilisation", Unit.RATIO, "70%", "busy share that the pools are sized for", PART),
    ),
)
