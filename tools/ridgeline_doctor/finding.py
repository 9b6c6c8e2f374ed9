"""One thing that a diagnosis found, and how findings are ordered."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters to what was asked."""

    PROBLEM = "problem"
    """It will not work, or badly, until this is mended."""
    WARNING = "warning"
    """It works, and leaves much on the table."""
    INFO = "info"
    """Worth knowing; nothing to mend."""


_ORDER = (Severity.PROBLEM, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause with the figure that supports it and what to look at next."""

    topic: str
    severity: Severity
    cause: str
    evidence: str
    """The figure or fact that the cause was told from, with its source."""
    next_check: str
    """A command to run or a thing to look at; it confirms the cause or mends it."""


def ranked(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Problems first, then warnings, then the rest; inside each the order in which they were found."""
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))
