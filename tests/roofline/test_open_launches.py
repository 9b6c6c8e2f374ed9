"""When a second launch is worth it: hidden host time against rows behind an unseen end."""

from dataclasses import replace

import pytest
from ridgeline_contracts.step import StepCoefficients
from ridgeline_roofline.decisions.open_launches import OpenLaunchFacts, open_launches

# 8 ms of weights, 0.02 ms a row, 1 us a token of context.
MODEL = StepCoefficients(8.0, 0.02, 0.001, 0.03, 1e-6)
BUSY = OpenLaunchFacts(
    rows=100, context_tokens=500, host_ms=2.0, mean_output_tokens=200.0, host_share_ratio=0.0
)


def test_figures_worked_out_by_hand() -> None:
    # 8 + 100 x 0.02 + 50,000 x 0.001 = 60 ms a step; 2 ms are hidden; 0.5 rows of 0.02 + 0.5 ms are wasted.
    found = open_launches(MODEL, BUSY)
    assert found.value == 2
    assert "a step of 60.00 ms the host's 2.00 ms save 2.000 ms" in found.derivation
    assert "0.500 rows a step end unseen and waste 0.260 ms" in found.derivation


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        pytest.param({"rows": 0}, 1, id="nothing-runs"),
        pytest.param({"host_ms": 0.0}, 1, id="nothing-to-hide"),
        pytest.param({"host_share_ratio": 1.0}, 1, id="the-host-takes-the-device"),
        pytest.param({"mean_output_tokens": 20.0}, 1, id="short-outputs"),  # 5 rows x 0.52 = 2.6 ms
        pytest.param({"mean_output_tokens": 30.0}, 2, id="longer-outputs"),  # 3.33 x 0.52 = 1.73 ms
        pytest.param({"mean_output_tokens": None}, 2, id="no-output-ended-yet"),
        pytest.param({"rows": 1, "host_ms": 0.04}, 1, id="a-lone-row-wastes-its-step"),  # 8.52 / 200 = 0.0426
        pytest.param({"rows": 1, "host_ms": 0.05}, 2, id="a-lone-row-beside-a-slow-host"),
        pytest.param({"host_share_ratio": 0.9}, 1, id="little-is-saved"),  # 0.2 < 0.26
    ],
)
def test_each_condition_that_switches_it(changes: dict[str, float | None], value: int) -> None:
    assert open_launches(MODEL, replace(BUSY, **changes)).value == value
