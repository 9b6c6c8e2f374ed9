"""Where the KV of an idle prefix should live: host, SSD, remote, or nowhere.

value = chance of re-use x (recompute - fetch) x GPU price - bytes x wear
fetch = bytes / reached bandwidth;  reached = lanes x copy / (latency + copy x lanes / bandwidth)
        lanes: copies under way at once, one a GPU, or the queue of the SSDs
break-even bandwidth = bytes / (recompute - copies / lanes x latency)
life of an SSD = size x writes a day x years / bytes written
"""

from ridgeline_roofline.decisions.kv_tier import (
    KVTier,
    TierFacts,
    break_even_bandwidth,
    effective_bandwidth,
    kv_tier,
    tier_value,
)
from ridgeline_roofline.plan.answer import Answer, Plan, Table, Value
from ridgeline_roofline.plan.bounds import COUNTED, PART, POSITIVE, SHARE
from ridgeline_roofline.plan.inputs import Extra, PlanInputs
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.batch import prompt_batch
from ridgeline_roofline.units import Unit, show

_DAY_S = 86400.0


def _answer(inputs: PlanInputs) -> Plan:
    extras, gpus = inputs.extras, inputs.layout.gpus
    tokens = inputs.prompt_tokens
    size = inputs.model.kv_bytes(tokens, inputs.formats.kv)
    recompute_s = inputs.step_model().step_s(prompt_batch(tokens)) / extras["efficiency"]
    wear = extras["ssd_price"] / (extras["ssd_size"] * extras["ssd_writes"] * 365 * extras["ssd_years"])
    tiers = (
        KVTier("host", gpus * inputs.gpu.host_link.value, extras["host_latency"], gpus),
        KVTier("ssd", extras["ssd"], extras["ssd_latency"], int(extras["ssd_queue"]), wear),
        KVTier("remote", gpus * inputs.link.bytes_per_s, inputs.link.latency_s, gpus),
    )
    facts = TierFacts(
        tokens=tokens,
        token_bytes=size / tokens,
        recompute_s=recompute_s,
        copy_bytes=extras["copy"],
        reuse_ratio=extras["reuse"],
        gpu_usd_per_s=gpus * inputs.gpu.usd_per_s.value,
        tiers=tiers,
    )
    decided = kv_tier(facts)
    written = inputs.rate_per_s * size * (1 - extras["reuse"])
    endurance = extras["ssd_size"] * extras["ssd_writes"] * 365 * extras["ssd_years"]
    life_s = endurance / written if written else float("inf")
    answers = (
        Answer("KV of the prefix", size, Unit.BYTES, f"{tokens} tokens x {size / tokens:,.0f} bytes"),
        Answer("recompute", recompute_s, Unit.SECONDS, f"prefill of {tokens} tokens on {inputs.layout}"),
        Answer(
            "break-even bandwidth",
            break_even_bandwidth(facts),
            Unit.BYTES_PER_S,
            f"{show(size, Unit.BYTES)} / recompute, large copies",
        ),
        Answer(
            "break-even with small copies",
            break_even_bandwidth(facts, latency_s=extras["host_latency"], lanes=gpus),
            Unit.BYTES_PER_S,
            f"{size / extras['copy']:,.0f} copies of {show(extras['copy'], Unit.BYTES)} "
            f"at {show(extras['host_latency'], Unit.SECONDS)} each, {gpus} at once",
        ),
        Answer("tier", decided.value.name, Unit.TEXT, decided.derivation),
        Answer(
            "value a token",
            decided.value.saved_usd / tokens,
            Unit.USD_PER_TOKEN,
            "re-use x (recompute - fetch) x GPU price - wear",
        ),
        Answer(
            "written to the SSD a day",
            written * _DAY_S,
            Unit.BYTES,
            f"{inputs.rate_per_s:g}/s x KV x (1 - re-use)",
        ),
        Answer(
            "life of the SSD",
            life_s,
            Unit.SECONDS,
            f"{show(extras['ssd_size'], Unit.BYTES)} x {extras['ssd_writes']:g} "
            f"writes a day x {extras['ssd_years']:g} years / written",
        ),
    )
    rows: list[tuple[Value, ...]] = []
    for tier in tiers:
        value = tier_value(facts, tier)
        rows.append(
            (
                tier.name,
                effective_bandwidth(tier, facts.copy_bytes),
                value.fetch_s,
                recompute_s - value.fetch_s,
                value.saved_usd,
            )
        )
    table = Table(
        f"Copies of {show(extras['copy'], Unit.BYTES)}",
        ("tier", "reached", "fetch", "saved", "USD saved on average"),
        (Unit.TEXT, Unit.BYTES_PER_S, Unit.SECONDS, Unit.SECONDS, Unit.USD),
        tuple(rows),
    )
    return Plan(
        answers,
        breaks_when=(
            "the GPU is idle anyway: recomputing is then free; see busy share",
            "a prefix is kept for hours: memory costs too while it waits; see re-use by age before a tier is enlarged",
            "many fetches share the link: each gets less; see bytes/s of the transfer metric and fetch time's p99",
        ),
        tables=(table,),
    )


TOPIC = Topic(
    name="kv-tiers",
    question="Should the KV of an idle prefix go to host memory, to SSD, to a remote store, or be dropped?",
    source="Gray and Putzolu, The Five Minute Rule, 1987, applied to KV",
    uses=("model", "gpu", "tp", "weights", "kv", "prompt", "rate", "link"),
    answer=_answer,
    defaults={"tp": "8", "prompt": "8k", "rate": "2/s"},
    extras=(
        Extra("reuse", Unit.RATIO, "30%", "chance that the prefix is asked for again in time", SHARE),
        Extra("copy", Unit.BYTES, "256kB", "contiguous bytes of one copy", POSITIVE),
        Extra("host_latency", Unit.SECONDS, "5us", "fixed cost of a copy to the host"),
        Extra("ssd", Unit.BYTES_PER_S, "7GB/s", "read rate of the SSDs of a node", POSITIVE),
        Extra("ssd_latency", Unit.SECONDS, "80us", "of one read"),
        Extra("ssd_queue", Unit.COUNT, "32", "reads under way at once", COUNTED),
        Extra("ssd_size", Unit.BYTES, "15TB", "their size", POSITIVE),
        Extra("ssd_writes", Unit.COUNT, "1", "whole writes a day that they stand (DWPD)", POSITIVE),
        Extra("ssd_years", Unit.COUNT, "5", "for that many years", POSITIVE),
        Extra("ssd_price", Unit.USD, "1500USD", "and their price"),
        Extra("efficiency", Unit.RATIO, "60%", "share of the floor's speed that prefill reaches", PART),
    ),
)
