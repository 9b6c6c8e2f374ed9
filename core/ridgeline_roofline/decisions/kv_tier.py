"""Where the KV of an idle prefix should live: the tier whose saving, less its costs, is largest.

value of a stored token = chance of re-use x (recompute - fetch), never negative
fetch = bytes / reached, reached = lanes x copy / (latency + copy x lanes / bandwidth): small copies do not reach
        the bandwidth, unless many are under way at once
a tier that wears (SSD) costs its price x bytes written / endurance
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class KVTier:
    name: str
    bandwidth_bytes_per_s: float
    latency_s: float
    """Of one copy."""
    lanes: int = 1
    """Copies under way at once: GPUs that copy over links of their own, or the queue of an SSD."""
    wear_usd_per_byte: float = 0.0
    """Price of the device / bytes that may be written to it in its life."""


@dataclass(frozen=True, slots=True)
class TierFacts:
    tokens: int
    token_bytes: float
    recompute_s: float
    """To prefill all of them again."""
    copy_bytes: float
    """Contiguous bytes of one copy: a block of one layer, or a whole block."""
    reuse_ratio: float
    """Chance that the prefix is asked for before it is dropped."""
    gpu_usd_per_s: float
    tiers: Sequence[KVTier]


@dataclass(frozen=True, slots=True)
class TierChoice:
    name: str
    """`drop` where no tier is worth it."""
    fetch_s: float
    saved_usd: float


def effective_bandwidth(tier: KVTier, copy_bytes: float) -> float:
    """Bytes/s of copies of that size, one after the other in each lane; all lanes share the bandwidth."""
    one_s = tier.latency_s + copy_bytes * tier.lanes / tier.bandwidth_bytes_per_s
    return tier.lanes * copy_bytes / one_s


def tier_value(facts: TierFacts, tier: KVTier) -> TierChoice:
    """Seconds to fetch from a tier, and USD that keeping the prefix there saves on average."""
    size = facts.tokens * facts.token_bytes
    fetch_s = size / effective_bandwidth(tier, facts.copy_bytes)
    gained = facts.reuse_ratio * (facts.recompute_s - fetch_s) * facts.gpu_usd_per_s
    return TierChoice(tier.name, fetch_s, gained - size * tier.wear_usd_per_byte)


def kv_tier(facts: TierFacts) -> Decision[TierChoice]:
    """The tier with the largest saving, or `drop`."""
    values = [tier_value(facts, tier) for tier in facts.tiers]
    best = max(values, key=lambda each: each.saved_usd, default=TierChoice("drop", 0.0, 0.0))
    if best.saved_usd <= 0:
        best = TierChoice("drop", 0.0, 0.0)
    shown = ", ".join(
        f"{each.name} {each.fetch_s * 1e3:.2f} ms, {each.saved_usd * 1e6:+.3f} uUSD" for each in values
    )
    return Decision(
        best,
        f"{best.name}: {facts.tokens} tokens take {facts.recompute_s * 1e3:.2f} ms to compute again, asked for with "
        f"chance {facts.reuse_ratio:.2f}; {shown}",
    )


def break_even_bandwidth(facts: TierFacts, *, latency_s: float = 0.0, lanes: int = 1) -> float:
    """Bytes/s from which fetching beats computing again; infinite where latency alone is too slow."""
    copies = facts.tokens * facts.token_bytes / facts.copy_bytes / lanes
    left = facts.recompute_s - copies * latency_s
    return facts.tokens * facts.token_bytes / left if left > 0 else float("inf")
