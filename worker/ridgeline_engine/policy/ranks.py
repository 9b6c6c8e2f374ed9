"""Queue policies: a rank for each sequence, and whether tenants take turns.

A policy is one entry in POLICIES. The lowest rank runs first and is preempted last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ridgeline_contracts.errors import SettingsError

from ridgeline_engine.request import PriorityClass

Rank: TypeAlias = tuple[float, ...]
"""Compared item by item. Total: no two sequences of one engine have equal ranks."""


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What a rank may depend on. It is asked for once, on arrival, so a preempted sequence keeps its
    place."""

    priority: PriorityClass
    arrival: int
    """The request's number in order of arrival."""
    choice: int
    received_ms: float = 0.0
    prefill_ms: float = 0.0
    """What its known tokens will take."""
    overtaking_ratio: float = 0.0
    """For how many times its own prefill it may be overtaken."""


RankPolicy: TypeAlias = Callable[[QueueFacts], Rank]


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    rank: RankPolicy
    fair: bool
    """Whether tenants take turns, the one that has had least first; ranks then order a tenant's own requests."""


def first_come_first_served(facts: QueueFacts) -> Rank:
    """Interactive before batch; within a class by arrival."""
    return (_class_rank(facts), facts.arrival, facts.choice)


def shortest_prefill_first(facts: QueueFacts) -> Rank:
    """Interactive before batch; within a class the shortest prefill, with ageing.

    Ageing is the same for all, so that the order of two that wait never changes, and a rank need not either:
    who arrives `ratio x prefill` later has waited too little to be passed.
    """
    due_ms = facts.received_ms + facts.overtaking_ratio * facts.prefill_ms
    return (_class_rank(facts), due_ms, facts.arrival, facts.choice)


POLICIES: dict[str, QueuePolicy] = {
    "fcfs": QueuePolicy(first_come_first_served, fair=False),
    "shortest": QueuePolicy(shortest_prefill_first, fair=False),
    "fair": QueuePolicy(shortest_prefill_first, fair=True),
}


def policy_named(name: str) -> QueuePolicy:
    """Raises SettingsError that lists the names there are."""
    if name not in POLICIES:
        raise SettingsError(
            f"policy={name!r} is unknown: give one of {', '.join(sorted(POLICIES))}", param="policy"
        )
    return POLICIES[name]


def _class_rank(facts: QueueFacts) -> float:
    return 0.0 if facts.priority is PriorityClass.INTERACTIVE else 1.0
