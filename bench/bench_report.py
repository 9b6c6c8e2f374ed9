"""What every script here prints with `--json`, and the arithmetic of interleaved repeats.

One object: `{"bench", "machine", "rows": [{"case", "ours", "peer", "peer_name", "unit", "ratio"}]}`.
`ours` and `peer` are medians. `ratio` is the median over repeats of ours against the peer of the same repeat, above 1
where ours is better. `spread` holds the smallest and the largest of each, `repeats` how many there were.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ridgeline_doctor.machine_evidence import MachineEvidence

Side = TypeVar("Side")


@dataclass(frozen=True, slots=True)
class Compared:
    """One case: what was measured in each repeat, in order; the peer's repeat n ran beside ours."""

    case: str
    unit: str
    peer_name: str
    ours: tuple[float, ...]
    peer: tuple[float, ...]
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not self.ours or len(self.ours) != len(self.peer):
            raise ValueError(
                f"{self.case}: {len(self.ours)} repeats of ours, {len(self.peer)} of {self.peer_name}"
            )

    @property
    def ratios(self) -> tuple[float, ...]:
        """By repeat, above 1 where ours is better."""
        pairs = zip(self.ours, self.peer, strict=True)
        return tuple(ours / peer if self.higher_is_better else peer / ours for ours, peer in pairs)

    def row(self) -> dict[str, Any]:
        """The row of the report."""
        return {
            "case": self.case,
            "ours": _rounded(statistics.median(self.ours)),
            "peer": _rounded(statistics.median(self.peer)),
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": _rounded(statistics.median(self.ratios)),
            "spread": {name: _ends(values) for name, values in self._series()},
            "repeats": len(self.ours),
        }

    def _series(self) -> tuple[tuple[str, Sequence[float]], ...]:
        return (("ours", self.ours), ("peer", self.peer), ("ratio", self.ratios))


def report(bench: str, machine: MachineEvidence, compared: Sequence[Compared], **more: Any) -> dict[str, Any]:
    """The whole object. `more` adds what else a reader must know: versions, settings, warnings."""
    return {
        "bench": bench,
        "machine": machine_facts(machine),
        "rows": [one.row() for one in compared],
        **more,
    }


def report_text(bench: str, machine: MachineEvidence, compared: Sequence[Compared], **more: Any) -> str:
    return json.dumps(report(bench, machine, compared, **more))


def machine_facts(machine: MachineEvidence) -> dict[str, Any]:
    """What a figure must be read with."""
    return {
        "cpu": machine.cpu_model,
        "architecture": machine.architecture,
        "cores": machine.usable_cores,
        "isa": sorted(machine.flags),
        "memory_bytes": machine.memory_total_bytes,
        "gpus": [gpu.name for gpu in machine.gpus],
    }


def interleaved(sides: Sequence[Side], *, repeats: int) -> Iterator[tuple[int, Side]]:
    """(repeat, side) in the order to run: each repeat runs all, every other one backwards.

    So a machine that gets slower or busier over time favours no side.
    """
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else tuple(reversed(sides)):
            yield repeat, side


def table(compared: Sequence[Compared], *, headers: Mapping[str, str] | None = None) -> str:
    """The same for people: one line a row, columns aligned."""
    names = {"case": "case", "ours": "ours", "peer": "peer", "ratio": "ratio (min to max)", **(headers or {})}
    lines = [(names["case"], names["ours"], names["peer"], names["ratio"])]
    for one in compared:
        row = one.row()
        low, high = row["spread"]["ratio"]
        lines.append(
            (
                row["case"],
                f"{row['ours']:g} {one.unit}",
                f"{row['peer']:g} {one.unit} ({one.peer_name})",
                f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _ends(values: Sequence[float]) -> list[float]:
    return [_rounded(min(values)), _rounded(max(values))]


def _rounded(value: float) -> float:
    """Four significant digits: more would pretend to a precision that no shared machine has."""
    return float(f"{value:.4g}")
