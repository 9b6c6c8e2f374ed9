"""The machine's own rates, and the linear layers of the model over rows. Loads torch when called."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_engine.executors.architectures import read_shape
from ridgeline_engine.executors.matrices import layer_matrices
from ridgeline_roofline.calibration.features import RowCurve
from ridgeline_roofline.calibration.record import MachineRates, MatmulRate

SKINNY_ROWS: Final = (1, 2, 4, 8, 16, 32)
TALL_ROWS: Final = (64, 128, 256, 512, 1024)
_DTYPES: Final = ("fp32", "bf16")
_MEASURED_WEIGHTS: Final = 1 << 27
"""At most about so many are packed; the time of deeper models is scaled up from it."""


def rate_steps(*, quick: bool) -> int:
    """How often `on_step` will be called by both functions together."""
    rows = len(row_counts(quick=quick))
    return 1 + len(_DTYPES) * rows + rows


def row_counts(*, quick: bool) -> tuple[int, ...]:
    return (1, 4, 16, 64, 256) if quick else (*SKINNY_ROWS, *TALL_ROWS)


def machine_rates(
    folder: ModelFolder, clock: Clock, *, repeats: int, quick: bool, on_step: Callable[[], None]
) -> MachineRates:
    """Copies, reads, and products with the model's largest layer matrix at each row count, in fp32 and bf16."""
    from ridgeline_kernels.rates import MatrixShape, RateProbe

    probe = RateProbe(clock, repeats)
    copy, read = probe.copy_bytes_per_s(), probe.read_bytes_per_s()
    on_step()
    plans = layer_matrices(read_shape(folder.config), 0).values()
    largest = max(plans, key=lambda plan: plan.weights)
    shape = MatrixShape(largest.inputs, sum(largest.outputs))
    found = []
    for dtype in _DTYPES:
        for rows in row_counts(quick=quick):
            reached = probe.matmul_flops_per_s(dtype, rows, shape)
            found.append(MatmulRate(dtype, rows, shape.inputs, shape.outputs, reached))
            on_step()
    return MachineRates(copy, read, tuple(found))


def linear_curve(
    folder: ModelFolder,
    clock: Clock,
    *,
    dtype: str,
    threads: int,
    kernel_cache: Path,
    repeats: int,
    quick: bool,
    on_step: Callable[[], None],
) -> RowCurve:
    """Milliseconds of all linear layers of the model, by rows, in the form that the engine would hold them in."""
    from ridgeline_kernels.rates import LinearLayers, MatrixShape, RateProbe

    shape = read_shape(folder.config)
    plans = list(layer_matrices(shape, 0).values())
    layers = max(1, min(shape.layers, _MEASURED_WEIGHTS // sum(plan.weights for plan in plans)))
    matrices = LinearLayers(
        [MatrixShape(plan.inputs, sum(plan.outputs)) for plan in plans],
        layers=layers,
        dtype=dtype,
        threads=threads,
        kernel_cache=kernel_cache,
        clock=clock,
    )
    probe, counts, found = RateProbe(clock, repeats), row_counts(quick=quick), []
    for rows in counts:
        found.append(matrices.lowest_ms(rows, probe) * shape.layers / layers)
        on_step()
    return RowCurve(counts, tuple(found))
