"""The scenarios: traffic, the policies compared, and what is measured of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.settings import EngineSettings

from ridgeline_testing.scenarios.driver import MODEL, Arrival, Machine, Outcome, Seen, percentile, run

_NO_EOS: tuple[int, ...] = ()
_NO_BOUND_MS = 1e9
_BATCH_TARGET_MS = 16.0
BASE = EngineSettings(eos_token_ids=_NO_EOS, coefficients=MODEL, max_step_tokens=2_048)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`measure` gives named figures; the first is what the policies are about."""

    title: str
    arrivals: tuple[Arrival, ...]
    variants: dict[str, EngineSettings]
    measure: Callable[[Outcome], dict[str, float]]
    machine: Machine = field(default_factory=Machine)

    def outcomes(self) -> dict[str, Outcome]:
        return {name: run(self.arrivals, each, self.machine) for name, each in self.variants.items()}


def long_prompt() -> Scenario:
    """One prompt of 32k tokens; four short requests decode when it comes, six come while it is computed."""
    before = [Arrival(0.0, f"short{index}", 200, 150, prompt_start=index * 997) for index in range(4)]
    after = [
        Arrival(200.0 + 100.0 * index, f"late{index}", 200, 40, prompt_start=(9 + index) * 997)
        for index in range(6)
    ]
    long = Arrival(150.0, "long", 32_000, 40, prompt_start=20_000)
    unguarded = replace(BASE, overrides=PolicyOverrides(gap_bound_ms=_NO_BOUND_MS))
    tight = replace(BASE, tpot_target_ms=12.0, policy="shortest")
    return Scenario(
        "One 32k prompt among ten short requests",
        (*before, long, *after),
        {
            "fcfs, chunks not cut": replace(unguarded, policy="fcfs", tpot_target_ms=None),
            "fcfs, TPOT 30 ms": replace(BASE, policy="fcfs"),
            "shortest first, TPOT 30 ms": replace(BASE, policy="shortest"),
            "TPOT 12 ms, guard off": replace(tight, overrides=PolicyOverrides(gap_bound_ms=_NO_BOUND_MS)),
            "TPOT 12 ms, guard on": tight,
        },
        lambda outcome: {
            "gap_p50_ms": percentile(_gaps(outcome.some("short")), 50),
            "gap_p99_ms": percentile(_gaps(outcome.some("short")), 99),
            "gap_max_ms": max(_gaps(outcome.some("short"))),
            "late_ttft_p50_ms": percentile([each.ttft_ms for each in outcome.some("late")], 50),
            "late_ttft_max_ms": max(each.ttft_ms for each in outcome.some("late")),
            "long_ttft_ms": outcome.seen["long"].ttft_ms,
        },
    )


def two_tenants() -> Scenario:
    """One tenant sends 24 documents of 6,000 tokens at once; the other chats, a short request each 100 ms."""
    documents = [
        Arrival(0.0, f"document{index:02}", 6_000, 60, tenant="documents", prompt_start=index * 577)
        for index in range(24)
    ]
    chats = [
        Arrival(
            50.0 + 100.0 * index, f"chat{index:02}", 300, 40, tenant="chat", prompt_start=15_000 + index * 91
        )
        for index in range(24)
    ]
    return Scenario(
        "Two tenants, one with long documents",
        (*documents, *chats),
        {name: replace(BASE, policy=name) for name in ("fcfs", "fair")},
        _tenants("chat", "document"),
        Machine(max_batch=8),
    )


def flood() -> Scenario:
    """Equal requests; one tenant sends 120 at once, the other 12 over the time they take."""
    many = [
        Arrival(0.0, f"flood{index:03}", 800, 60, tenant="many", prompt_start=index * 97)
        for index in range(120)
    ]
    few = [
        Arrival(
            100.0 + 100.0 * index, f"calm{index:02}", 800, 60, tenant="few", prompt_start=20_000 + index * 97
        )
        for index in range(12)
    ]
    return Scenario(
        "Two tenants, one that floods with equal requests",
        (*many, *few),
        {name: replace(BASE, policy=name) for name in ("fcfs", "shortest", "fair")},
        _tenants("calm", "flood"),
        Machine(max_batch=8),
    )


def batch_class() -> Scenario:
    """120 batch sequences of 2,000 tokens run when 20 interactive requests come."""
    batch = [
        Arrival(0.0, f"batch{index:03}", 2_000, 300, priority=PriorityClass.BATCH, prompt_start=index * 199)
        for index in range(120)
    ]
    interactive = [
        Arrival(6_000.0 + 50.0 * index, f"live{index:02}", 400, 100, prompt_start=20_000 + index * 97)
        for index in range(20)
    ]
    target = replace(BASE, tpot_target_ms=_BATCH_TARGET_MS)
    return Scenario(
        "Batch class under interactive load, TPOT target 16 ms",
        (*batch, *interactive),
        {
            "no share": replace(target, overrides=PolicyOverrides(batch_kv_tokens=10**9)),
            "share of the KV": target,
        },
        lambda outcome: {
            "live_tpot_p50_ms": percentile([each.tpot_ms for each in outcome.some("live")], 50),
            "live_tpot_p95_ms": percentile([each.tpot_ms for each in outcome.some("live")], 95),
            "live_on_target_ratio": _ratio(
                outcome.some("live"), lambda each: each.tpot_ms <= _BATCH_TARGET_MS
            ),
            "live_ttft_p95_ms": percentile([each.ttft_ms for each in outcome.some("live")], 95),
            "batch_end_ms": max(each.token_times_ms[-1] for each in outcome.some("batch")),
            "preemptions": float(sum(each.preemptions for each in outcome.seen.values())),
        },
        Machine(blocks=24_000),
    )


def exhausted_pool() -> Scenario:
    """48 requests of 500 tokens whose outputs, 100 to 1,500 tokens, need three times the pool."""
    arrivals = tuple(
        Arrival(20.0 * index, f"r{index:02}", 500, 100 + (index * 617) % 1_400, prompt_start=index * 613)
        for index in range(48)
    )
    settings = replace(BASE, tpot_target_ms=None, host_copy_bytes_per_ms=25e6)
    return Scenario(
        "Pool exhausted by outputs",
        arrivals,
        {kind: replace(settings, preemption=kind) for kind in ("recompute", "swap", "wait", "auto")},
        lambda outcome: {
            "tpot_p50_ms": percentile([each.tpot_ms for each in outcome.seen.values()], 50),
            "tpot_p95_ms": percentile([each.tpot_ms for each in outcome.seen.values()], 95),
            "worst_gap_p50_ms": percentile([max(each.gaps_ms) for each in outcome.seen.values()], 50),
            "worst_gap_p95_ms": percentile([max(each.gaps_ms) for each in outcome.seen.values()], 95),
            "ttft_p95_ms": percentile([each.ttft_ms for each in outcome.seen.values()], 95),
            "total_ms": outcome.total_ms,
            "preemptions": float(sum(each.preemptions for each in outcome.seen.values())),
            "prefilled_tokens": float(outcome.prefilled_tokens),
        },
        Machine(blocks=1_000, host_blocks=4_000),
    )


SCENARIOS: dict[str, Callable[[], Scenario]] = {
    "long_prompt": long_prompt,
    "two_tenants": two_tenants,
    "flood": flood,
    "batch_class": batch_class,
    "exhausted_pool": exhausted_pool,
}


def _tenants(small: str, large: str) -> Callable[[Outcome], dict[str, float]]:
    return lambda outcome: {
        f"{small}_ttft_p50_ms": percentile([each.ttft_ms for each in outcome.some(small)], 50),
        f"{small}_ttft_p95_ms": percentile([each.ttft_ms for each in outcome.some(small)], 95),
        f"{large}_ttft_p50_ms": percentile([each.ttft_ms for each in outcome.some(large)], 50),
        f"{large}_ttft_p95_ms": percentile([each.ttft_ms for each in outcome.some(large)], 95),
        "total_ms": outcome.total_ms,
    }


def _gaps(seen: Sequence[Seen]) -> list[float]:
    return [gap for each in seen for gap in each.gaps_ms]


def _ratio(seen: Sequence[Seen], holds: Callable[[Seen], bool]) -> float:
    return sum(holds(each) for each in seen) / len(seen)
