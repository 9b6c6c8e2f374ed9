"""Calibrations with the real executor: a tiny random model, and, marked long, SmolLM2 over the reduced grid."""

from pathlib import Path

import pytest
from ridgeline_cli.calibrate.session import Plan, calibrate_machine
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_doctor.machine_probe import probe_machine
from ridgeline_roofline.calibration.judge import judged_errors
from ridgeline_roofline.calibration.record import Calibration, read_calibration
from ridgeline_testing.tiny_llama import build_tiny_llama

HOME = Path.home() / ".cache" / "ridgeline"


def _run(folder: Path) -> tuple[Calibration, int, int]:
    """The calibration, the steps that its plan promised, and those it reported."""
    plan = Plan(
        folder=load_model_folder(folder),
        dtype="fp32",
        threads=1,
        kv_bytes=2 * 10**9,
        kernel_cache=HOME / "kernels",
        repeats=1,
        quick=True,
    )
    reported: list[None] = []
    found = calibrate_machine(
        plan, probe_machine(), SystemClock(), on_step=lambda: reported.append(None), torch_version="here"
    )
    return found, plan.steps, len(reported)


@pytest.mark.timeout(240)
def test_a_tiny_model_is_measured_cell_by_cell(tmp_path: Path) -> None:
    found, promised, reported = _run(build_tiny_llama(tmp_path / "tiny"))
    assert reported == promised
    assert found.conditions.dtype == "fp32"
    assert min(result.measured_ms for result in found.results) > 0
    # Much more work takes longer, whatever else the machine does: 1 token against 272 at once.
    took = {(r.cell.batch, r.cell.context_tokens, r.cell.chunk_tokens): r.measured_ms for r in found.results}
    assert took[16, 16, 256] > took[1, 16, 0]
    assert found.rates.copy_bytes_per_s > 1e8
    assert read_calibration(found.to_json(), source="x") == found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_smollm2_is_predicted_within_the_limits() -> None:
    found, _, _ = _run(HOME / "models" / "smollm2-135m-instruct")
    # The full grid is what the limits hold for; a single cell of so few repeats may be disturbed.
    assert judged_errors(found.results).median_ratio <= 0.10
