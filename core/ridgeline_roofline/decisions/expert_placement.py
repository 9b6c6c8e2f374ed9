"""Which experts share a rank: the busiest rank sets the step, so its load over the mean is what is lost.

in order      experts 0, 1, ... side by side, as a checkpoint has them
by load       each next popular expert to the least loaded rank that has a place
with copies   the heaviest expert is halved over one more place, again and again, then as above
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class PlacementFacts:
    """`loads`: tokens (or shares of them) by expert; their number is a multiple of `ranks`."""

    loads: Sequence[float]
    ranks: int
    spare_places: int = 0
    """Places beyond one an expert, over all ranks, for copies."""


@dataclass(frozen=True, slots=True)
class Placement:
    """`ranks[r]` names the experts of rank r; a copied expert is named by several ranks."""

    ranks: tuple[tuple[int, ...], ...]
    busiest_ratio: float
    """Load of the busiest rank over the mean: the step's experts take this many times what they could."""


def in_order_ratio(loads: Sequence[float], ranks: int) -> float:
    """Busiest over mean where experts stay as the checkpoint has them."""
    size = len(loads) // ranks
    return max(sum(loads[rank * size : (rank + 1) * size]) for rank in range(ranks)) * ranks / sum(loads)


def expert_placement(facts: PlacementFacts) -> Decision[Placement]:
    """Experts on ranks by load, the heaviest copied into the spare places."""
    pieces = sorted(((load, expert) for expert, load in enumerate(facts.loads)), reverse=True)
    for _ in range(facts.spare_places):
        load, expert = pieces.pop(0)
        pieces = sorted([*pieces, (load / 2, expert), (load / 2, expert)], reverse=True)
    places = -(-len(pieces) // facts.ranks)
    held = [0.0] * facts.ranks
    named: list[list[int]] = [[] for _ in held]
    for load, expert in pieces:
        rank = min((r for r in range(facts.ranks) if len(named[r]) < places), key=lambda r: held[r])
        held[rank] += load
        named[rank].append(expert)
    ratio = max(held) * facts.ranks / sum(facts.loads)
    before = in_order_ratio(facts.loads, facts.ranks)
    return Decision(
        Placement(tuple(tuple(sorted(each)) for each in named), ratio),
        f"{len(facts.loads)} experts and {facts.spare_places} copies on {facts.ranks} ranks by load: the busiest has "
        f"{ratio:.3f} of the mean, {before:.3f} in order",
    )
