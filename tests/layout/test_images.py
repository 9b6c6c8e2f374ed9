"""The Dockerfile's stages, read as text: nothing here needs a container engine."""

import importlib.util
import json
import re
from dataclasses import dataclass

import pytest

TARGETS = {
    "gateway": "ridgeline_gateway",
    "router": "ridgeline_router",
    "operator": "ridgeline_operator",
    "worker-cpu": "ridgeline_worker",
    "worker-cuda": "ridgeline_worker",
}
COMPILERS = re.compile(r"\b(gcc|g\+\+|clang|build-essential|libc6-dev)\b")


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    base: str
    instructions: list[str]


@pytest.fixture(scope="module")
def stages(repository):
    text = re.sub(r"\\\n", " ", repository.text("Dockerfile"))
    found: dict[str, Stage] = {}
    stage = None
    for line in text.splitlines():
        opening = re.fullmatch(r"FROM (\S+) AS (\S+)", line)
        if opening:
            stage = Stage(name=opening[2], base=opening[1], instructions=[])
            found[stage.name] = stage
        elif stage is not None and line and not line.startswith("#"):
            stage.instructions.append(line)
    return found


def history(stages, name):
    """Instructions of a stage and of all that it is built upon, oldest first."""
    stage = stages.get(name)
    return [*history(stages, stage.base), *stage.instructions] if stage else []


def test_there_is_one_target_a_component(stages):
    assert set(TARGETS) <= set(stages)


@pytest.mark.parametrize(("target", "package"), TARGETS.items())
def test_a_target_starts_a_module_that_exists(stages, target, package):
    entry_points = [line for line in history(stages, target) if line.startswith("ENTRYPOINT")]
    assert json.loads(entry_points[-1].removeprefix("ENTRYPOINT ")) == ["python", "-m", package]
    assert importlib.util.find_spec(f"{package}.__main__") is not None


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_runs_as_a_numbered_user_without_privileges(stages, target):
    users = [line.split()[1] for line in history(stages, target) if line.startswith("USER")]
    assert users
    uid, gid = users[-1].split(":")
    assert int(uid) >= 10_000
    assert int(gid) >= 10_000


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_never_imports_from_the_working_directory(stages, target):
    assert any("PYTHONSAFEPATH=1" in line for line in history(stages, target))


@pytest.mark.parametrize("target", ["gateway", "router", "operator"])
def test_a_component_that_builds_nothing_has_no_compiler(stages, target):
    assert [line for line in history(stages, target) if COMPILERS.search(line)] == []


@pytest.mark.parametrize("target", ["worker-cpu", "worker-cuda"])
def test_a_worker_can_build_kernels_for_its_machine(stages, target):
    installs = [line for line in history(stages, target) if "apt-get" in line]
    assert any("gcc" in line and "libc6-dev" in line for line in installs)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_gets_the_extra_of_its_own_component(stages, target):
    component = target.split("-")[0]
    (copied,) = [line for line in history(stages, target) if line.startswith("COPY --from=")]
    environment = copied.split()[1].removeprefix("--from=")
    assert environment == f"{component}-environment"
    assert any(
        re.search(rf"install-component {component}$", line) for line in stages[environment].instructions
    )


def test_every_component_folder_is_in_the_build_context(repository, stages):
    kept = {line[1:] for line in repository.text(".dockerignore").splitlines() if line.startswith("!")}
    copied = {
        source
        for line in history(stages, "build")
        if line.startswith("COPY ") and "<<" not in line
        for source in line.split()[1:-1]
    }
    assert copied == kept
    assert {folder.parent.name for folder in repository.packages} <= copied
