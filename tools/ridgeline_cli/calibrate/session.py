"""One calibration from start to end: rates, linear layers, steps, fit. Measures; prints nothing, stores nothing."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Final

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_doctor.machine_evidence import MachineEvidence
from ridgeline_engine.executors.architectures import read_shape
from ridgeline_engine.executors.sizes import DtypeSetting, estimate, full_format
from ridgeline_roofline.calibration.features import RowCurve, fit_model, fit_wire
from ridgeline_roofline.calibration.grid import FULL_AXES, QUICK_AXES, Cell, Grid, grid_for
from ridgeline_roofline.calibration.judge import CellResult
from ridgeline_roofline.calibration.record import Calibration, Conditions, MachineRates

from ridgeline_cli.calibrate.rates import linear_curve, machine_rates, rate_steps
from ridgeline_cli.calibrate.steps import ExecutorOptions, StepTimer, opened_executor

BLOCK_TOKENS: Final = 16
_RESTLESS_RATIO: Final = 0.10
"""A cell whose repeats differ by more (median over lowest) is measured again."""
_RATE_REPEATS: Final = 5
_SHORT_MS: Final = 100.0
_SHORT_SAMPLES: Final = 6
"""A short step is run this often in a row, the lowest counts: waking threads is a large part of it, and varies."""

OnStep = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured, and how."""

    folder: ModelFolder
    dtype: DtypeSetting
    threads: int
    kv_bytes: int
    kernel_cache: Path
    repeats: int
    quick: bool

    @property
    def grid(self) -> Grid:
        """Raises SettingsError where the KV memory holds too little of it."""
        return grid_for(
            QUICK_AXES if self.quick else FULL_AXES,
            kv_tokens=self.kv_bytes // kv_token_bytes(self.folder, self.dtype),
            max_context_tokens=self.folder.context_tokens,
            block_tokens=BLOCK_TOKENS,
        )

    @property
    def dtype_name(self) -> str:
        """fp32 or bf16, `auto` resolved."""
        return full_format(read_shape(self.folder.config), self.dtype).value

    @property
    def steps(self) -> int:
        """How often `on_step` will be called, but for cells that are measured again."""
        return rate_steps(quick=self.quick) + (1 + self.repeats) * len(self.grid.cells)


def kv_token_bytes(folder: ModelFolder, dtype: DtypeSetting) -> int:
    """Of all layers."""
    sizes = estimate(folder.config, dtype=dtype, block_tokens=BLOCK_TOKENS, max_batch=1, max_step_tokens=1)
    return max(1, sum(sizes.kv_block_bytes.values()) // BLOCK_TOKENS)


def calibrate_machine(
    plan: Plan, machine: MachineEvidence, clock: Clock, *, on_step: OnStep, torch_version: str
) -> Calibration:
    """Takes minutes. The executor, its memory and its thread are gone when this returns or is interrupted."""
    load = os.getloadavg()[0]
    repeats = 2 if plan.quick else _RATE_REPEATS
    rates = machine_rates(plan.folder, clock, repeats=repeats, quick=plan.quick, on_step=on_step)
    linear = linear_curve(
        plan.folder,
        clock,
        dtype=plan.dtype_name,
        threads=plan.threads,
        kernel_cache=plan.kernel_cache,
        repeats=repeats,
        quick=plan.quick,
        on_step=on_step,
    )
    options = ExecutorOptions(plan.dtype, plan.threads, BLOCK_TOKENS, plan.kernel_cache)
    grid = plan.grid
    with opened_executor(plan.folder, options, grid, clock) as executor:
        taken = _measured(StepTimer(executor, grid), grid.cells, plan.repeats, on_step)
    conditions = Conditions(
        machine=machine.cpu_model,
        cores=machine.usable_cores,
        threads=plan.threads,
        memory_bytes=machine.memory_total_bytes,
        dtype=plan.dtype_name,
        model=str(plan.folder.name),
        weights_revision=plan.folder.weights_revision,
        ridgeline=_own_version(),
        torch=torch_version,
        measured_at_ms=clock.wall_ms(),
        repeats=plan.repeats,
        load_average=load,
    )
    return fitted(conditions, rates, linear, taken)


def fitted(
    conditions: Conditions, rates: MachineRates, linear: RowCurve, taken: dict[Cell, list[float]]
) -> Calibration:
    """The lowest repeat of each cell stands for it; judged cells take no part in the fit."""
    lowest = {cell: min(found) for cell, found in taken.items()}
    seen = [cell for cell in lowest if not cell.is_judged]
    durations = [lowest[cell] for cell in seen]
    model, wire = fit_model(seen, durations, linear), fit_wire(seen, durations)
    results = tuple(
        CellResult(
            cell,
            lowest[cell],
            median(found) / lowest[cell] - 1.0,
            model.predict_ms(cell),
            wire.predict_ms(cell.shape),
        )
        for cell, found in taken.items()
    )
    return Calibration(conditions, rates, model, wire, results)


def _measured(
    timer: StepTimer, cells: Sequence[Cell], repeats: int, on_step: OnStep
) -> dict[Cell, list[float]]:
    """Rounds over all cells in an order that changes, so that a slow minute touches many cells once, not one cell
    always; then the restless ones again."""
    orders = _orders(cells)
    for cell in next(orders):
        timer.measure_ms(cell)
        on_step()
    found: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for _ in range(repeats):
        for cell in next(orders):
            found[cell].append(_lowest_ms(timer, cell))
            on_step()
    for _ in range(repeats):
        for cell in next(orders):
            if _is_restless(found[cell]):
                found[cell].append(_lowest_ms(timer, cell))
    return found


def _lowest_ms(timer: StepTimer, cell: Cell) -> float:
    once_ms = timer.measure_ms(cell)
    if once_ms > _SHORT_MS:
        return once_ms
    return min(once_ms, *(timer.measure_ms(cell) for _ in range(_SHORT_SAMPLES - 1)))


def _is_restless(found: Sequence[float]) -> bool:
    """The two lowest do not agree: the lowest may not be the bottom yet."""
    if len(found) < 2:
        return False
    lowest, second = sorted(found)[:2]
    return second > lowest * (1 + _RESTLESS_RATIO)


def _orders(cells: Sequence[Cell]) -> Iterator[tuple[Cell, ...]]:
    """The same shuffles in every run."""
    chosen = random.Random(0)
    while True:
        order = list(cells)
        chosen.shuffle(order)
        yield tuple(order)


def _own_version() -> str:
    try:
        return version("ridgeline")
    except PackageNotFoundError:
        return "unpackaged"
