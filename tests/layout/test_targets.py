"""`make` explains itself, CI runs what `make ci` runs, and what is missing is said out loud."""

import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

TARGETS = ["setup", "demo", "up", "test", "test-long", "test-soak", "check", "ci", "lock", "proto", "format"]


@pytest.fixture
def run(repository):
    def execute(*command, **environment):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        return subprocess.run(
            command, cwd=repository.root, env={**clean, **environment}, capture_output=True, text=True
        )

    return execute


@pytest.fixture
def bare_path(tmp_path):
    """A PATH on which nothing lies but a shell."""
    for program in ("bash", "id"):
        (tmp_path / program).symlink_to(shutil.which(program))
    return str(tmp_path)


@pytest.fixture(scope="module")
def bootstrap(repository):
    spec = importlib.util.spec_from_file_location("bootstrap", repository.root / "scripts" / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_make_alone_lists_every_target_with_its_help(run):
    listing = run("make")
    assert listing.returncode == 0
    for target in TARGETS:
        (line,) = [line for line in listing.stdout.splitlines() if line.split()[:2] == ["make", target]]
        assert len(line.split()) > 4


def test_ci_runs_make_ci_and_make_ci_runs_everything(repository, run):
    assert "make ci" in repository.text(".ci/run")
    recipe = run("make", "--dry-run", "ci").stdout
    for step in (
        "ruff check",
        "ruff format --check",
        "mypy",
        "lint-imports",
        "not long and not soak",
        "-m long",
    ):
        assert step in recipe


def test_a_missing_program_is_named_in_one_line_and_costs_only_its_tests(run, bare_path):
    result = run("bash", "scripts/system_programs.sh", "no-such-program", PATH=bare_path)
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        "system: MISSING no-such-program: the tests that need it are skipped. "
        "Debian and Ubuntu: apt-get install no-such-program"
    ]


def test_a_missing_program_that_is_required_ends_the_run(run, bare_path):
    result = run("bash", "scripts/system_programs.sh", "--required", "no-such-program", PATH=bare_path)
    assert result.returncode == 1
    assert "MISSING no-such-program" in result.stderr


@pytest.mark.parametrize(
    ("required", "outcome"),
    [
        pytest.param("0", "NOT TESTED test_redis.py::test_redis: no redis-server here", id="skipped-loudly"),
        pytest.param("1", "1 error", id="fails-in-ci"),
    ],
)
def test_a_test_whose_program_is_missing_says_so(repository, run, bare_path, tmp_path, required, outcome):
    suite = tmp_path / "suite"
    suite.mkdir()
    shutil.copy(repository.root / "tests" / "conftest.py", suite)
    (suite / "test_redis.py").write_text("def test_redis(redis_url):\n    assert redis_url\n")
    options = ["-c", "pyproject.toml", "--rootdir", str(suite), "-p", "no:cacheprovider", "-q"]
    result = run(
        *(sys.executable, "-m", "pytest", *options, str(suite)),
        PATH=bare_path,
        RIDGELINE_REQUIRE_PROGRAMS=required,
    )
    assert outcome in result.stdout
    assert result.returncode == int(required)


def test_a_python_that_is_too_old_is_told_so(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "MINIMUM_PYTHON", (99, 0))
    with pytest.raises(bootstrap.Stop, match=r"needs 3\.11 or newer.*make setup PYTHON="):
        bootstrap.check_python()


def test_a_python_without_venv_names_the_package_that_brings_it(bootstrap, monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(bootstrap.Stop, match="apt-get install python3-venv"):
        bootstrap.check_python()


def test_a_step_that_fails_shows_its_last_lines(bootstrap):
    command = [sys.executable, "-c", "print('no such package'); raise SystemExit(1)"]
    with pytest.raises(bootstrap.Stop, match="no such package\nfailed: "):
        bootstrap.run(command, bootstrap.Progress(stages=1))
