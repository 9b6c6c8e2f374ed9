"""Status conditions of custom resources, as the Kubernetes API conventions describe them. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from ridgeline_contracts.errors import InvariantError

MAX_MESSAGE_CHARACTERS = 1024
"""The API allows 32,768; a status is read in a terminal, and every change of it is stored."""
_CUT_MARK = "..."


class ConditionStatus(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `type` is its key: a resource has at most one of each."""

    type: str
    status: ConditionStatus
    reason: str
    """A CamelCase word for programs."""
    message: str
    """For people; cut at MAX_MESSAGE_CHARACTERS when it is merged."""
    observed_generation: int
    """Of the spec that this was told from."""
    last_transition_time: str | None = None
    """RFC 3339 in UTC, when `status` last changed. None in a new one: merging sets it."""

    def to_object(self) -> dict[str, Any]:
        """The form in which it stands in `.status.conditions`. Raises InvariantError before it was merged."""
        if self.last_transition_time is None:
            raise InvariantError(f"condition {self.type} was never merged: it has no transition time")
        return {
            "type": self.type,
            "status": self.status.value,
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": self.last_transition_time,
        }

    @classmethod
    def from_object(cls, held: Mapping[str, Any]) -> "Condition":
        """Reads one of `.status.conditions`.

        Raises KeyError or ValueError for what the CRD would not allow.
        """
        return cls(
            type=str(held["type"]),
            status=ConditionStatus(held["status"]),
            reason=str(held["reason"]),
            message=str(held.get("message", "")),
            observed_generation=int(held.get("observedGeneration", 0)),
            last_transition_time=str(held["lastTransitionTime"]),
        )


def merge_conditions(
    existing: Iterable[Condition], new: Iterable[Condition], now: datetime
) -> tuple[Condition, ...]:
    """The conditions to write: `new` over `existing`, by type.

    A condition keeps its transition time while its status stays the same, and else gets `now` (with a time
    zone). Types that `new` does not name stay as they are. The order is that of `existing`, then that of
    `new`, so that an unchanged status is written as an equal object. Raises InvariantError if a type comes
    twice in `new`.
    """
    merged = {condition.type: condition for condition in existing}
    named: set[str] = set()
    for condition in new:
        if condition.type in named:
            raise InvariantError(f"condition {condition.type} was given twice")
        named.add(condition.type)
        merged[condition.type] = _merged(merged.get(condition.type), condition, now)
    return tuple(merged.values())


def _merged(before: Condition | None, condition: Condition, now: datetime) -> Condition:
    stays = before is not None and before.status is condition.status
    return Condition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=_cut(condition.message),
        observed_generation=condition.observed_generation,
        last_transition_time=before.last_transition_time if stays and before is not None else _written(now),
    )


def _cut(message: str) -> str:
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    return message[: MAX_MESSAGE_CHARACTERS - len(_CUT_MARK)] + _CUT_MARK


def _written(now: datetime) -> str:
    # Whole seconds: what the API server stores for a metav1.Time.
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
