"""At least 85% of all mutants of pool, prefix cache, scheduler and policies are noticed by some fast test."""

import os
from pathlib import Path

import pytest
from ridgeline_testing.mutation.groups import GROUPS, Group
from ridgeline_testing.mutation.runner import run

LEAST_RATIO = 0.85
ENGINE = Path(__file__).parents[2] / "worker" / "ridgeline_engine"


@pytest.mark.soak
@pytest.mark.parametrize("group", [pytest.param(each, id=each.name.replace(" ", "-")) for each in GROUPS])
def test_mutants_are_killed(group: Group, tmp_path: Path) -> None:
    scores = run(group, tmp_path, processes=len(os.sched_getaffinity(0)))
    mutants, killed = sum(each.mutants for each in scores), sum(each.killed for each in scores)
    table = "\n".join(f"{each.module}: {each.killed} of {each.mutants}" for each in scores)
    survivors = "\n".join(name for each in scores for name in each.survivors)
    assert killed >= LEAST_RATIO * mutants, f"{killed} of {mutants} mutants were killed\n{table}\n{survivors}"


@pytest.mark.parametrize("group", [pytest.param(each, id=each.name.replace(" ", "-")) for each in GROUPS])
def test_a_group_names_modules_and_tests_that_exist(group: Group) -> None:
    for pattern in group.modules:
        assert list(ENGINE.glob(pattern)), pattern
    for name in group.tests:
        assert (Path(__file__).parent / f"{name}.py").is_file(), name


def test_every_policy_is_in_a_group() -> None:
    named = {pattern for group in GROUPS for pattern in group.modules}
    found = {f"policy/{path.name}" for path in (ENGINE / "policy").glob("*.py") if path.stem != "__init__"}
    assert found <= named
