"""Runs mutmut over one group in a folder of its own, and reads what became of each mutant."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ridgeline_testing.mutation.groups import Group

_ROOT = Path(__file__).parents[4]
_PRODUCT = ("core", "gateway", "router", "operator", "tools")
_KILLED = frozenset({1, 3, 24, 36, 152, 255, -24})
"""mutmut's exit codes of a mutant that some test noticed, or that ran for ever."""
_CONFIG = """
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib", "-p", "no:xdist", "-p", "no:cacheprovider"]
pythonpath = ["tests/support"]
markers = ["long: not here", "soak: not here"]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"
filterwarnings = ["error"]

[tool.mutmut]
source_paths = ["src/"]
only_mutate = {modules}
pytest_add_cli_args_test_selection = {tests}
pytest_add_cli_args = ["-m", "not long and not soak", "-k", {selection}]
also_copy = ["tests/support", "tests/conftest.py"]
timeout_multiplier = 3.0
"""


_PROFILE = """

from hypothesis import Phase, settings

# A test that fails need not say how little it takes to fail it.
settings.register_profile(
    "mutation", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None
)
settings.load_profile("mutation")
"""


class MutationFailed(RuntimeError):
    """mutmut itself failed; its last lines are in the message."""


@dataclass(frozen=True, slots=True)
class Score:
    """Of one module."""

    module: str
    mutants: int
    killed: int
    survivors: tuple[str, ...]

    @property
    def ratio(self) -> float:
        return self.killed / self.mutants if self.mutants else 1.0


def run(group: Group, folder: Path, *, processes: int) -> list[Score]:
    """Minutes: each mutant is a run of the tests that reach it. Raises MutationFailed."""
    _lay_out(group, folder)
    paths = [str(_ROOT / each) for each in _PRODUCT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_WAIT_POLICY": "passive"}
    command = (sys.executable, "-m", "mutmut", "run", "--max-children", str(processes))
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    scores = [_score(path, folder) for path in sorted((folder / "mutants").rglob("*.py.meta"))]
    found = [each for each in scores if each.mutants]
    if done.returncode != 0 or not found:
        raise MutationFailed(f"mutmut ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2_000:]}")
    return found


def _lay_out(group: Group, folder: Path) -> None:
    shutil.copytree(_ROOT / "worker" / "ridgeline_engine", folder / "src" / "ridgeline_engine")
    tests = folder / "tests" / "engine"
    tests.mkdir(parents=True)
    for name in ("conftest", *group.tests):
        shutil.copy(_ROOT / "tests" / "engine" / f"{name}.py", tests)
    shutil.copytree(_ROOT / "tests" / "support", folder / "tests" / "support")
    (folder / "tests" / "conftest.py").write_text((_ROOT / "tests" / "conftest.py").read_text() + _PROFILE)
    modules = [f"src/ridgeline_engine/{each}" for each in group.modules]
    selected = [f"tests/engine/{each}.py" for each in group.tests]
    selection = f"not {group.without}" if group.without else "test"
    text = _CONFIG.format(
        modules=json.dumps(modules), tests=json.dumps(selected), selection=json.dumps(selection)
    )
    (folder / "pyproject.toml").write_text(text)


def _score(path: Path, folder: Path) -> Score:
    codes: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
    outcomes = Counter(code in _KILLED for code in codes.values())
    module = path.relative_to(folder / "mutants" / "src" / "ridgeline_engine")
    survivors = tuple(sorted(name for name, code in codes.items() if code not in _KILLED))
    return Score(str(module).removesuffix(".meta"), len(codes), outcomes[True], survivors)
