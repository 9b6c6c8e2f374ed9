"""The step model that `ridgeline calibrate` left on this machine, where it holds for what this worker runs."""

import logging
from collections.abc import Callable
from pathlib import Path

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.executors.architectures import read_shape
from ridgeline_engine.executors.sizes import full_format
from ridgeline_roofline.calibration.store import stored_calibration

from ridgeline_worker.settings import EngineSettings

_log = logging.getLogger(__name__)
_CPU_FACTS = Path("/proc/cpuinfo")


def cpu_model(text: str) -> str:
    """The CPU's name in /proc/cpuinfo; "unknown" where it names none."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "model name":
            return value.strip()
    return "unknown"


def calibrated_coefficients(
    folder: ModelFolder,
    settings: EngineSettings,
    *,
    read_cpu: Callable[[], str] = lambda: _CPU_FACTS.read_text(encoding="utf-8"),
) -> StepCoefficients | None:
    """For a worker on the CPU. None where nothing was measured with this CPU, thread count, dtype and these weights.

    Compiled kernels and calibrations lie side by side in the cache folder. A broken record is worth a warning, not
    a start.
    """
    if settings.cache_folder is None or settings.weights != "auto":
        return None
    dtype = full_format(read_shape(folder.config), settings.dtype).value
    try:
        machine = cpu_model(read_cpu())
        found = stored_calibration(
            settings.cache_folder.parent,
            wanted=lambda conditions: conditions.matches(
                machine=machine,
                threads=settings.threads,
                dtype=dtype,
                weights_revision=folder.weights_revision,
            ),
        )
    except (SettingsError, OSError) as error:
        _log.warning("calibration.unreadable error=%s", error)
        return None
    return None if found is None else found.wire
