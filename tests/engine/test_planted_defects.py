"""Each named defect, planted on purpose, is caught by a named test: tests that cannot fail prove nothing."""

from contextlib import nullcontext

import pytest
from ridgeline_testing.defects import DEFECTS
from ridgeline_testing.nested_run import outcomes_of
from ridgeline_testing.planting import planted

NAMES = [pytest.param(each.name, id=each.name.replace(" ", "-")) for each in DEFECTS]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of the defects that were selected, by their names; then of their tests in the code as it is, by node id."""
    asked = {
        item.callspec.params["name"] for item in request.session.items if "outcomes" in item.fixturenames
    }
    defects = [each for each in DEFECTS if each.name in asked]
    wanted = {each.name: (each.caught_by, planted(each)) for each in defects}
    return outcomes_of({**wanted, **{each.caught_by: (each.caught_by, nullcontext()) for each in defects}})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_a_planted_defect_is_caught(name: str, outcomes: dict[str, str]) -> None:
    (defect,) = (each for each in DEFECTS if each.name == name)
    assert outcomes[name] == "failed"
    assert outcomes[defect.caught_by] == "passed", "it fails without the defect too"


def test_each_defect_has_a_name_of_its_own() -> None:
    assert len({each.name for each in DEFECTS}) == len(DEFECTS)
