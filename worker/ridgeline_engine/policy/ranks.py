"""Queue policies: a rank for each sequence, the lowest first to be admitted and the last to be preempted.

A policy is one function and its entry in POLICIES.
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


RankPolicy: TypeAlias = Callable[[QueueFacts], Rank]


def first_come_first_served(facts: QueueFacts) -> Rank:
    """Interactive before batch; within a class by arrival."""
    return (0.0 if facts.priority is PriorityClass.INTERACTIVE else 1.0, facts.arrival, facts.choice)


POLICIES: dict[str, RankPolicy] = {"fcfs": first_come_first_served}


def policy_named(name: str) -> RankPolicy:
    """Raises SettingsError that lists the names there are."""
    if name not in POLICIES:
        raise SettingsError(
            f"policy={name!r} is unknown: give one of {', '.join(sorted(POLICIES))}", param="policy"
        )
    return POLICIES[name]
