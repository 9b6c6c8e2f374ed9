"""A whole service from its arrivals: tokens a second by phase, replicas, the ceiling, and dollars.

tokens/s = rate x tokens, prompt and output apart; what is cached is not computed
replicas = ceil(rate x peak / (requests/s of a replica within its targets x utilisation))
cost = replicas x GPUs of one x price
"""

from math import ceil

from ridgeline_contracts.errors import SettingsError

from ridgeline_roofline.plan.answer import Answer, Plan, Total
from ridgeline_roofline.plan.bounds import AT_LEAST_ONE, PART, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.serving import Workload, prefill_s, served
from ridgeline_roofline.units import Unit, show


def _answer(inputs: PlanInputs) -> Plan:
    extras, model = inputs.extras, inputs.step_model()
    cached = inputs.prompt_tokens * extras["cached"]
    work = Workload(inputs.prompt_tokens - cached, inputs.output_tokens, inputs.ttft_s, inputs.tpot_s, cached)
    one = served(model, work, efficiency=extras["efficiency"])
    if one.rows == 0:
        raise SettingsError(
            f"tp={inputs.layout.tp} on {inputs.gpu.gpu_id} cannot serve "
            f"this workload: {one.by}; give more ranks, another GPU "
            "or longer targets",
            param="tp",
        )
    peak = inputs.rate_per_s * extras["peak"]
    replicas = ceil(peak / one.requests_per_s / extras["utilisation"])
    gpus = replicas * inputs.layout.gpus
    hourly = gpus * inputs.gpu.usd_per_s.value * 3600
    prefill_share = prefill_s(model, work, efficiency=extras["efficiency"]) * one.requests_per_s
    prefill_share = min(prefill_share, 1.0)
    busy_s = inputs.rate_per_s / one.requests_per_s
    monthly = hourly * 730
    requests = inputs.rate_per_s * 3600 * 730
    answers = (
        Answer(
            "prompt tokens a second",
            inputs.rate_per_s * inputs.prompt_tokens,
            Unit.TOKENS_PER_S,
            f"{inputs.rate_per_s:g}/s x {inputs.prompt_tokens}",
        ),
        Answer(
            "of them computed",
            inputs.rate_per_s * work.prompt_tokens,
            Unit.TOKENS_PER_S,
            f"{1 - extras['cached']:.0%}: the rest is cached",
        ),
        Answer(
            "output tokens a second",
            inputs.rate_per_s * inputs.output_tokens,
            Unit.TOKENS_PER_S,
            f"{inputs.rate_per_s:g}/s x {inputs.output_tokens}",
        ),
        Answer(
            "one replica serves",
            one.requests_per_s,
            Unit.REQUESTS_PER_S,
            f"{one.rows} rows, step {show(one.step_s, Unit.SECONDS)}, limited by {one.by}",
        ),
        Answer(
            "replica-seconds a second, prefill",
            busy_s * prefill_share,
            Unit.COUNT,
            f"{prefill_share:.0%} of a replica's time goes to prompts",
        ),
        Answer("replica-seconds a second, decode", busy_s * (1 - prefill_share), Unit.COUNT, "the rest"),
        Answer(
            "replica-seconds a second",
            busy_s,
            Unit.COUNT,
            f"{inputs.rate_per_s:g}/s / {one.requests_per_s:.3g}/s",
        ),
        Answer("peak rate", peak, Unit.REQUESTS_PER_S, f"{extras['peak']:g} x the mean"),
        Answer(
            "replicas",
            replicas,
            Unit.COUNT,
            f"ceil({peak:.4g} / {one.requests_per_s:.3g} / {extras['utilisation']:.0%})",
        ),
        Answer("GPUs", gpus, Unit.COUNT, f"{replicas} x {inputs.layout.gpus}"),
        Answer("ceiling", replicas * one.requests_per_s, Unit.REQUESTS_PER_S, "all replicas, fully busy"),
        Answer("utilisation at the mean", busy_s / replicas, Unit.RATIO, "what is paid for and used"),
        Answer("cost an hour", hourly, Unit.USD, f"{gpus} x {inputs.gpu.usd_per_s.value * 3600:.2f}"),
        Answer("cost a month", monthly, Unit.USD, "730 hours"),
        Answer(
            "cost a request",
            monthly / requests,
            Unit.USD_PER_REQUEST,
            f"{show(monthly, Unit.USD)} / {requests:,.0f}",
        ),
    )
    return Plan(
        answers,
        breaks_when=(
            "the peak lasts longer than the queue absorbs: then it is the mean that counts; see the rate by hour",
            "the cached share falls under load (evictions): prefill grows just then; see hit tokens against rate",
        ),
        totals=(
            Total(
                "replica-seconds a second",
                ("replica-seconds a second, prefill", "replica-seconds a second, decode"),
            ),
        ),
    )


TOPIC = Topic(
    name="service",
    question="How many replicas, GPUs and dollars does a service of this rate take?",
    source="first principles over the capacity unit",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "output", "ttft", "tpot", "rate"),
    answer=_answer,
    defaults={"tp": "8", "rate": "20/s"},
    extras=(
        Extra("peak", Unit.RATIO, "2", "peak rate over the mean", AT_LEAST_ONE),
        Extra("cached", Unit.RATIO, "30%", "share of prompt tokens that the prefix cache gives", SHARE),
        Extra("utilisation", Unit.RATIO, "80%", "of the capacity, at the peak", PART),
        Extra("efficiency", Unit.RATIO, "70%", "share of the floor's speed that is reached", PART),
    ),
)
