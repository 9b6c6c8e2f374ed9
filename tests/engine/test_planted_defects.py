"""Each named defect, planted on purpose, is caught by a named test: tests that cannot fail prove nothing."""

import pytest
from ridgeline_testing.defects import DEFECTS
from ridgeline_testing.nested_run import outcome_of
from ridgeline_testing.planting import Defect, planted


@pytest.mark.parametrize("defect", [pytest.param(each, id=each.name.replace(" ", "-")) for each in DEFECTS])
def test_a_planted_defect_is_caught(defect: Defect) -> None:
    with planted(defect):
        assert outcome_of(defect.caught_by) == "failed"
