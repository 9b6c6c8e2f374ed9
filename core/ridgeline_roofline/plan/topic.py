"""A topic of `ridgeline plan`: the question it answers, what it uses, and the function that answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline_roofline.plan.answer import Plan
from ridgeline_roofline.plan.inputs import Extra, PlanInputs


@dataclass(frozen=True, slots=True)
class Topic:
    """`defaults` replace the shared flags' defaults where the question wants others."""

    name: str
    question: str
    source: str
    """Where the formulas come from."""
    uses: tuple[str, ...]
    answer: Callable[[PlanInputs], Plan]
    defaults: Mapping[str, str] = field(default_factory=dict)
    extras: tuple[Extra, ...] = ()
