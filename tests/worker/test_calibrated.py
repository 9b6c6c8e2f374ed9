"""A worker starts from what `ridgeline calibrate` measured, where that holds for it."""

import logging
from pathlib import Path

import pytest
from ridgeline_cli.calibrate.session import fitted
from ridgeline_cli.calibrate.stored import calibration_file, save
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_roofline.calibration.features import RowCurve
from ridgeline_roofline.calibration.grid import QUICK_AXES, grid_for
from ridgeline_roofline.calibration.record import Calibration, Conditions, MachineRates
from ridgeline_testing.tiny_llama import build_tiny_llama
from ridgeline_worker.calibrated import calibrated_coefficients, cpu_model
from ridgeline_worker.settings import EngineSettings

CPU = "processor\t: 0\nmodel name\t: Made Up CPU\nflags\t\t: fma\n"


def _calibration(weights_revision: str) -> Calibration:
    conditions = Conditions(
        "Made Up CPU", 2, 2, 10**9, "fp32", "tiny", weights_revision, "0", "0", 1.0, 1, 0.0
    )
    cells = grid_for(QUICK_AXES, kv_tokens=50_000, max_context_tokens=8192, block_tokens=16).cells
    taken = {cell: [5.0 + cell.tokens] for cell in cells}
    return fitted(conditions, MachineRates(1.0, 1.0, ()), RowCurve((1, 8), (1.0, 2.0)), taken)


@pytest.mark.parametrize(
    ("change", "is_used"),
    [
        pytest.param({}, True, id="measured-for-this"),
        pytest.param({"threads": 1}, False, id="other-threads"),
        pytest.param({"weights": "int8"}, False, id="other-weights"),
        pytest.param({"cache_folder": None}, False, id="no-cache-folder"),
    ],
)
def test_a_worker_uses_what_was_measured_for_it_alone(
    tmp_path: Path, change: dict[str, object], is_used: bool
) -> None:
    folder = load_model_folder(build_tiny_llama(tmp_path / "tiny"))
    kept = _calibration(folder.weights_revision)
    save(kept, calibration_file(tmp_path, kept.conditions))
    fields = {
        "model_folder": folder.path,
        "dtype": "fp32",
        "threads": 2,
        "cache_folder": tmp_path / "kernels",
    }
    settings = EngineSettings(**(fields | change))  # type: ignore[arg-type]
    found = calibrated_coefficients(folder, settings, read_cpu=lambda: CPU)
    assert found == (kept.wire if is_used else None)
    # 5 ms a step and 1 ms a token, row or prompt: what the made-up machine takes.
    assert kept.wire.per_prefill_token_ms == pytest.approx(1.0, rel=0.01)


def test_a_broken_record_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = load_model_folder(build_tiny_llama(tmp_path / "tiny"))
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "x.json").write_text("{")
    settings = EngineSettings(model_folder=folder.path, cache_folder=tmp_path / "kernels")
    with caplog.at_level(logging.WARNING):
        assert calibrated_coefficients(folder, settings, read_cpu=lambda: CPU) is None
    assert "x.json" in caplog.text


def test_a_cpu_is_known_by_its_name() -> None:
    assert cpu_model(CPU) == "Made Up CPU"
    assert cpu_model("") == "unknown"
