"""Headroom for the loss of a region: the smallest fleet whose others carry the load of any one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ridgeline_roofline.decisions.decision import Decision


@dataclass(frozen=True, slots=True)
class FailoverFacts:
    loads: Sequence[float]
    """Load of each region at its peak, in capacity units; at least two regions."""
    unit_per_replica: float
    utilisation: float
    """Share of a replica's capacity that may be used, also after the loss."""


@dataclass(frozen=True, slots=True)
class RegionFleet:
    replicas: tuple[int, ...]
    """By region, in the order of the loads."""
    lost_carried_ratio: float
    """Smallest share of all load that is carried, over the loss of each region: at least 1."""


def failover_routes(facts: FailoverFacts, replicas: Sequence[int], *, lost: int) -> tuple[float, ...]:
    """Units of the lost region's load that each region takes: by what it has to spare, so that all end equally far
    from full. The lost one takes nothing."""
    per = facts.unit_per_replica * facts.utilisation
    spare = [
        0.0 if region == lost else max(0.0, count * per - load)
        for region, (count, load) in enumerate(zip(replicas, facts.loads, strict=True))
    ]
    return tuple(facts.loads[lost] * each / sum(spare) for each in spare)


def failover_fleet(facts: FailoverFacts) -> Decision[RegionFleet]:
    """Replicas by region: enough for the own load, and together enough for the whole load without any one region.

    The lower bound on the total is total load x n / (n - 1), met when the largest region is not larger than its
    share; headroom goes to the smallest region first, which keeps what one loss takes away small.
    """
    per = facts.unit_per_replica * facts.utilisation
    fleet = [max(1, ceil(load / per)) for load in facts.loads]
    needed = ceil(sum(facts.loads) / per)
    while sum(fleet) - max(fleet) < needed:
        smallest = fleet.index(min(fleet))
        fleet[smallest] += 1
    carried = min((sum(fleet) - lost) * per for lost in fleet) / sum(facts.loads)
    own = sum(max(1, ceil(load / per)) for load in facts.loads)
    return Decision(
        RegionFleet(tuple(fleet), carried),
        f"{sum(facts.loads):.4g} units / ({facts.unit_per_replica:.3g} x {facts.utilisation:.0%}) = {needed} replicas "
        f"must be left after the largest region of {max(fleet)} is "
        f"lost: {sum(fleet)} in all, {sum(fleet) - own} of them "
        "headroom",
    )
