"""Where calibrations are kept, and which one stands for this machine."""

import re
from pathlib import Path

from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.calibration.record import Calibration, Conditions, efficiency_of, gpu_of
from ridgeline_roofline.calibration.store import calibration_folder, stored_calibration
from ridgeline_roofline.catalogue.gpus import Gpu
from ridgeline_roofline.step.timing import Efficiency

_UNSAFE = re.compile(r"[^a-z0-9.]+")


def calibration_file(home: Path, conditions: Conditions) -> Path:
    """`<machine>-<dtype>-<model>.json`."""
    names = (conditions.machine, conditions.dtype, conditions.model)
    return calibration_folder(home) / (
        "-".join(_UNSAFE.sub("-", n.lower()).strip("-") for n in names) + ".json"
    )


def save(calibration: Calibration, path: Path) -> None:
    """Whole or not at all: written beside, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    beside.write_text(calibration.to_json() + "\n", encoding="utf-8")
    beside.replace(path)


def stored_gpu(home: Path) -> Gpu:
    """This machine as the newest calibration measured it. Raises SettingsError where there is none."""
    return gpu_of(_newest(home))


def stored_efficiency(home: Path) -> Efficiency:
    """The fixed part of a step on this machine. Raises SettingsError as `stored_gpu` does."""
    return efficiency_of(_newest(home))


def _newest(home: Path) -> Calibration:
    found = stored_calibration(home)
    if found is None:
        raise SettingsError(
            f"gpu='this' is not known: {calibration_folder(home)} holds no calibration, "
            "run ridgeline calibrate first",
            param="gpu",
        )
    return found
