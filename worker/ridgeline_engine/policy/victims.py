"""Who pays when blocks run out: the running sequence for which going is cheapest, or the one that waits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVGroup
from ridgeline_contracts.step import StepModel
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.preemption import (
    PreemptionFacts,
    PreemptionKind,
    preemption_choice,
    preemption_costs_ms,
)

from ridgeline_engine.sequence import Sequence as EngineSequence

AUTO = "auto"
PREEMPTIONS: tuple[str, ...] = (AUTO, *PreemptionKind)


@dataclass(frozen=True, slots=True)
class Victim:
    sequence: EngineSequence
    choice: Decision[PreemptionKind]


@dataclass(frozen=True, slots=True)
class Situation:
    """What is the same for all possible victims."""

    groups: Sequence[KVGroup]
    wanted_tokens: float
    """Positions that the running ones will take before a victim is back: so much of its cache is lost."""
    copy_bytes_per_ms: float | None
    wait_ms: float | None


def check_preemption(name: str) -> str:
    """Raises SettingsError that lists the names there are."""
    if name not in PREEMPTIONS:
        raise SettingsError(
            f"preemption={name!r} is unknown: give one of {', '.join(PREEMPTIONS)}", param="preemption"
        )
    return name


def facts_of(sequence: EngineSequence, situation: Situation, *, can_swap: bool) -> PreemptionFacts:
    """The price list of one possible victim."""
    stored = min(
        (sequence.tables[each.group].stored_blocks * each.block_tokens for each in situation.groups),
        default=0,
    )
    held_bytes = sum(len(sequence.tables[each.group].blocks) * each.block_bytes for each in situation.groups)
    return PreemptionFacts(
        victim_tokens=sequence.computed_tokens,
        kept_tokens=max(0, min(stored, sequence.computed_tokens) - int(situation.wanted_tokens)),
        swap_bytes=held_bytes if can_swap else None,
        copy_bytes_per_ms=situation.copy_bytes_per_ms,
        wait_ms=situation.wait_ms,
    )


def choose_victim(
    model: StepModel, possible: Iterable[tuple[EngineSequence, PreemptionFacts]], *, preemption: str
) -> Victim | None:
    """Whose going costs least; among equals the last given. None where nobody may go.

    `preemption` other than "auto" sets the kind where it is possible; where it is not, the victim recomputes.
    """
    best: tuple[float, EngineSequence, PreemptionFacts] | None = None
    for sequence, facts in possible:
        costs = preemption_costs_ms(model, facts)
        costs.pop(PreemptionKind.WAIT, None)
        cost_ms = (
            costs.get(PreemptionKind(preemption), min(costs.values()))
            if preemption != AUTO
            else min(costs.values())
        )
        if best is None or cost_ms <= best[0]:
            best = (cost_ms, sequence, facts)
    if best is None:
        return None
    _, sequence, facts = best
    return Victim(sequence, choice_for(model, facts, preemption=preemption))


def choice_for(model: StepModel, facts: PreemptionFacts, *, preemption: str) -> Decision[PreemptionKind]:
    """The derived choice, or the one that is set with the derived one beside it."""
    derived = preemption_choice(model, facts)
    if preemption == AUTO:
        return derived
    kind = PreemptionKind(preemption)
    possible = {PreemptionKind.RECOMPUTE}
    if facts.swap_bytes is not None:
        possible.add(PreemptionKind.SWAP)
    if facts.wait_ms is not None:
        possible.add(PreemptionKind.WAIT)
    if kind in possible:
        return Decision(kind, f"{kind.value}, as set; derived {derived.derivation}")
    fallback = preemption_choice(model, replace(facts, swap_bytes=None, wait_ms=None))
    return Decision(fallback.value, f"{kind.value} is set but not possible: {fallback.derivation}")
