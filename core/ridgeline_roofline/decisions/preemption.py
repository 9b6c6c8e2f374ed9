"""What to do when a running sequence needs a block and none is free."""

from dataclasses import dataclass
from enum import StrEnum

from ridgeline_contracts.step import StepModel

from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.prefill_cost import prefill_ms


class PreemptionKind(StrEnum):
    RECOMPUTE = "recompute"
    """The victim gives up its blocks; what the prefix cache loses of them is computed again."""
    SWAP = "swap"
    """The victim's blocks are copied to the host and back."""
    WAIT = "wait"
    """Nobody goes: the one that needs a block pauses until another sequence ends."""


@dataclass(frozen=True, slots=True)
class PreemptionFacts:
    """Of one victim, and of the one that would wait instead."""

    victim_tokens: int
    """Positions whose KV is lost with its blocks."""
    kept_tokens: int
    """Of these, what the prefix cache will probably still have when it comes back."""
    swap_bytes: int | None
    """Of its blocks; None where the host has no room for them."""
    copy_bytes_per_ms: float | None
    """Between device and host, measured; None: nothing was measured, so that a swap cannot be priced."""
    wait_ms: float | None
    """Until some running sequence is expected to end; None where no other runs on."""


def preemption_choice(model: StepModel, facts: PreemptionFacts) -> Decision[PreemptionKind]:
    """The cheapest for the one that pays: recompute what is lost, copy out and in, or wait.

    Equal costs: recompute before swap before wait, the order of what holds least meanwhile.
    """
    costs = preemption_costs_ms(model, facts)
    value = min(costs, key=lambda kind: costs[kind])
    return Decision(value, f"{value.value}: {_in_words(facts, costs)}")


def preemption_costs_ms(model: StepModel, facts: PreemptionFacts) -> dict[PreemptionKind, float]:
    """Milliseconds of each kind that is possible; recompute always is."""
    lost = facts.victim_tokens - facts.kept_tokens
    costs = {PreemptionKind.RECOMPUTE: prefill_ms(model, lost, start=facts.kept_tokens)}
    if facts.swap_bytes is not None and facts.copy_bytes_per_ms is not None:
        costs[PreemptionKind.SWAP] = 2 * facts.swap_bytes / facts.copy_bytes_per_ms
    if facts.wait_ms is not None:
        costs[PreemptionKind.WAIT] = facts.wait_ms
    return costs


def _in_words(facts: PreemptionFacts, costs: dict[PreemptionKind, float]) -> str:
    lost = facts.victim_tokens - facts.kept_tokens
    parts = [
        f"to recompute {lost} of {facts.victim_tokens} tokens takes {costs[PreemptionKind.RECOMPUTE]:.2f} ms"
    ]
    if PreemptionKind.SWAP in costs:
        parts.append(f"to copy {facts.swap_bytes} bytes out and in {costs[PreemptionKind.SWAP]:.2f} ms")
    elif facts.swap_bytes is None:
        parts.append("the host has no room for its blocks")
    else:
        parts.append("no copy was measured yet")
    if PreemptionKind.WAIT in costs:
        parts.append(f"another ends in about {costs[PreemptionKind.WAIT]:.2f} ms")
    else:
        parts.append("nobody else runs on")
    return ", ".join(parts)
