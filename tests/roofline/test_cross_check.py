"""The floor against another estimator's figures (bench/aiconfigurator_check.py wrote them)."""

import json
from pathlib import Path
from typing import Any

import pytest
from ridgeline_roofline.plan.cross_check import cells, ratios

_DATA = Path(__file__).parent / "data" / "aiconfigurator_0_12.json"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return loaded


def test_our_floor_lies_below_every_estimate(found: dict[str, Any]) -> None:
    compared = cells(found)
    assert len(compared) == 96
    assert {(cell.system, cell.tp) for cell in compared} == {
        (s, n) for s in ("h100_sxm", "b200_sxm") for n in (1, 2, 4)
    }
    assert [cell for cell in compared if cell.ratio >= 1] == []
    # A floor that is far too low says nothing either.
    assert min(cell.ratio for cell in compared) > 0.25


def test_b200_over_h100_is_ranked_alike(found: dict[str, Any]) -> None:
    ratio = ratios(found)
    assert ratio.theirs == pytest.approx(2.41, abs=0.01)
    assert abs(ratio.apart) <= 0.35
