"""A calibration as it is kept: conditions, rates, prices, and the error of every cell. JSON in, JSON out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepCoefficients

from ridgeline_roofline.calibration.features import CalibratedModel, RowCurve
from ridgeline_roofline.calibration.grid import Cell
from ridgeline_roofline.calibration.judge import CellResult
from ridgeline_roofline.catalogue.figure import Evidence, Figure
from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.gpus import THIS_MACHINE, Gpu
from ridgeline_roofline.step.timing import Efficiency
from ridgeline_roofline.units import Unit

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the figures hold for; another value of any of them asks for another calibration."""

    machine: str
    """The CPU's model name."""
    cores: int
    threads: int
    memory_bytes: int
    dtype: str
    model: str
    weights_revision: str
    ridgeline: str
    torch: str
    measured_at_ms: float
    """Unix epoch, for display."""
    repeats: int
    load_average: float
    """Of the machine as the run began: above a few tenths, somebody else was at work."""

    def matches(self, *, machine: str, threads: int, dtype: str, weights_revision: str) -> bool:
        return (self.machine, self.threads, self.dtype, self.weights_revision) == (
            machine,
            threads,
            dtype,
            weights_revision,
        )


@dataclass(frozen=True, slots=True)
class MatmulRate:
    """`rows` x [`inner`, `outer`], by the library's own product in that dtype."""

    dtype: str
    rows: int
    inner: int
    outer: int
    flops_per_s: float


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What this machine reached, best of the repeats."""

    copy_bytes_per_s: float
    """Bytes read and written together."""
    read_bytes_per_s: float
    matmuls: tuple[MatmulRate, ...]

    def best_flops_per_s(self, dtype: str) -> float | None:
        return max((rate.flops_per_s for rate in self.matmuls if rate.dtype == dtype), default=None)


@dataclass(frozen=True, slots=True)
class Calibration:
    conditions: Conditions
    rates: MachineRates
    model: CalibratedModel
    wire: StepCoefficients
    results: tuple[CellResult, ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "schema": SCHEMA,
                "conditions": asdict(self.conditions),
                "rates": asdict(self.rates),
                "prices_ms": dict(self.model.prices),
                "linear": asdict(self.model.linear),
                "wire": asdict(self.wire),
                "results": [asdict(result) for result in self.results],
            },
            indent=1,
        )


def read_calibration(text: str, *, source: str) -> Calibration:
    """Raises SettingsError naming `source` where the text is no calibration of this schema."""
    try:
        found: dict[str, Any] = json.loads(text)
        if found["schema"] != SCHEMA:
            raise SettingsError(
                f"{source} has schema {found['schema']}, not {SCHEMA}: run ridgeline calibrate again"
            )
        return _calibration(found)
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{source} is no calibration ({error!r}): run ridgeline calibrate again"
        ) from error


def _calibration(found: Mapping[str, Any]) -> Calibration:
    rates, linear = found["rates"], found["linear"]
    return Calibration(
        Conditions(**found["conditions"]),
        MachineRates(
            rates["copy_bytes_per_s"],
            rates["read_bytes_per_s"],
            tuple(MatmulRate(**rate) for rate in rates["matmuls"]),
        ),
        CalibratedModel(
            dict(found["prices_ms"]), RowCurve(tuple(linear["rows"]), tuple(linear["durations_ms"]))
        ),
        StepCoefficients(**found["wire"]),
        _results(found["results"]),
    )


def _results(rows: Sequence[Mapping[str, Any]]) -> tuple[CellResult, ...]:
    return tuple(CellResult(**{**row, "cell": Cell(**row["cell"])}) for row in rows)


def gpu_of(calibration: Calibration) -> Gpu:
    """This machine as a device of the catalogue: what was measured, and stated guesses for the rest."""
    conditions, rates = calibration.conditions, calibration.rates
    source = f"ridgeline calibrate, {conditions.machine}, {conditions.threads} threads"

    def measured(value: float, unit: Unit) -> Figure:
        return Figure(value, unit, source, Evidence.MEASURED)

    def assumed(value: float, unit: Unit) -> Figure:
        return Figure(
            value, unit, "not measured: a CPU has no such link, power or price here", Evidence.ASSUMED
        )

    bandwidth = max(rates.copy_bytes_per_s, rates.read_bytes_per_s)
    peaks = {dtype: rates.best_flops_per_s(dtype.value) for dtype in (Dtype.FP32, Dtype.BF16)}
    return Gpu(
        gpu_id=THIS_MACHINE,
        name=conditions.machine,
        memory=Figure(conditions.memory_bytes, Unit.BYTES, "the system", Evidence.DRIVER),
        bandwidth=measured(bandwidth, Unit.BYTES_PER_S),
        flops={dtype: measured(peak, Unit.FLOP_PER_S) for dtype, peak in peaks.items() if peak is not None},
        multiprocessors=Figure(conditions.cores, Unit.COUNT, "the system", Evidence.DRIVER),
        l2=assumed(1e6, Unit.BYTES),
        link=assumed(2 * bandwidth, Unit.BYTES_PER_S),
        domain_gpus=assumed(1, Unit.COUNT),
        tdp=assumed(100.0, Unit.WATTS),
        idle_power=assumed(30.0, Unit.WATTS),
        usd_per_s=assumed(0.05 / 3600, Unit.USD_PER_S),
        host_link=assumed(bandwidth, Unit.BYTES_PER_S),
    )


def efficiency_of(calibration: Calibration) -> Efficiency:
    """What the measured rates leave out: the fixed part of a step, as fitted.

    The rates are already those that were reached, so the shares of them stay at 1.
    """
    return Efficiency(host_s=calibration.model.prices["step"] / 1e3)
