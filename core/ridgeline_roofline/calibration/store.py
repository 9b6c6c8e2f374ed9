"""The calibrations that a folder holds: one file each, the newest that fits counts."""

from collections.abc import Callable
from pathlib import Path

from ridgeline_roofline.calibration.record import Calibration, Conditions, read_calibration


def calibration_folder(home: Path) -> Path:
    """Inside the user's cache folder."""
    return home / "calibration"


def stored_calibration(
    home: Path, *, wanted: Callable[[Conditions], bool] = lambda conditions: True
) -> Calibration | None:
    """The newest one whose conditions are wanted; None where there is none.

    Raises SettingsError for a broken file.
    """
    found = [
        read_calibration(path.read_text(encoding="utf-8"), source=str(path))
        for path in sorted(calibration_folder(home).glob("*.json"))
    ]
    fitting = [calibration for calibration in found if wanted(calibration.conditions)]
    return max(fitting, key=lambda calibration: calibration.conditions.measured_at_ms, default=None)
