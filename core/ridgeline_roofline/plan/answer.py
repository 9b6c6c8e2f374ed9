"""What a plan says: answers with their working, a table and a curve where they help, and where it breaks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ridgeline_roofline.units import Unit

Value: TypeAlias = float | str


@dataclass(frozen=True, slots=True)
class Answer:
    """One figure. `working` is the formula with its numbers filled in."""

    name: str
    value: Value
    unit: Unit
    working: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of values under headings, each column in one unit."""

    title: str
    headings: tuple[str, ...]
    units: tuple[Unit, ...]
    rows: tuple[tuple[Value, ...], ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Where a curve is the answer. `series` maps a name to values of y, one for each x."""

    title: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    series: Mapping[str, Sequence[float]]
    x_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    """Names of answers of which the first is the sum of the others: a test holds every plan to it."""

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`breaks_when` names where the model is wrong, and the metric or check that shows it."""

    answers: tuple[Answer, ...]
    breaks_when: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    curve: Curve | None = None
    totals: tuple[Total, ...] = ()

    def value(self, name: str) -> float:
        """A number by its name. For callers that go on computing, and for tests."""
        found = next(answer.value for answer in self.answers if answer.name == name)
        if isinstance(found, str):
            raise TypeError(f"{name} is the word {found!r}")
        return found

    def word(self, name: str) -> str:
        return str(next(answer.value for answer in self.answers if answer.name == name))


def plan_json(topic: str, inputs: Mapping[str, Value], plan: Plan) -> dict[str, Any]:
    """The `--json` form: SI base units throughout, no rounding. What has no limit is null: JSON lacks infinity."""
    return {
        "topic": topic,
        "inputs": dict(inputs),
        "answers": [
            {
                "name": each.name,
                "value": _json_value(each.value),
                "unit": each.unit.value,
                "working": each.working,
            }
            for each in plan.answers
        ],
        "breaks_when": list(plan.breaks_when),
    }


def _json_value(value: Value) -> Value | None:
    return None if isinstance(value, float) and math.isinf(value) else value
