"""What statuses share."""

from dataclasses import dataclass
from typing import Annotated

from ridgeline_contracts.resources.field_rules import Schema, text


@dataclass(frozen=True, slots=True)
class ConditionObject:
    """A condition as the Kubernetes API conventions describe it."""

    type: Annotated[str, text("Its key.", most=63)]
    status: Annotated[str, text("True, False or Unknown.", pattern="^(True|False|Unknown)$")]
    reason: Annotated[str, text("A word for programs.", most=128)]
    message: Annotated[str, text("For people: what is the matter, and what to do.", most=4096, least=0)]
    last_transition_time: Annotated[str, text("When the status last changed, RFC 3339 in UTC.", most=32)]
    observed_generation: Annotated[int | None, Schema("Of the spec that this was told from.", minimum=0)] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Derivation:
    """A figure with the sentence that it follows from."""

    name: Annotated[str, text("What was derived.", most=63)]
    value: Annotated[str, text("The figure with its unit.", most=128)]
    working: Annotated[str, text("The numbers that led to it.", most=1024)]
