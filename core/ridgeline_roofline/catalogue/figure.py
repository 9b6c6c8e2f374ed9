"""A figure of a catalogue: the value, where it comes from, and whether anybody measured it."""

from dataclasses import dataclass
from enum import StrEnum

from ridgeline_roofline.units import Unit


class Evidence(StrEnum):
    DATASHEET = "datasheet"
    DRIVER = "driver"
    """As the device's own driver reports it."""
    MEASURED = "measured"
    DERIVED = "derived"
    ASSUMED = "assumed"
    """A stated guess: override it where it matters."""


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` in SI base units."""

    value: float
    unit: Unit
    source: str
    evidence: Evidence = Evidence.DATASHEET
