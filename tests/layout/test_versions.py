"""One version, everywhere."""

import importlib.metadata
import re


def test_the_installed_distribution_has_the_version_of_the_checkout(repository):
    assert importlib.metadata.version("ridgeline") == repository.pyproject["project"]["version"]


def test_the_changelog_begins_with_the_current_version(repository):
    newest = re.search(r"^## (\S+)", repository.text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == repository.pyproject["project"]["version"]


def test_every_chart_ships_the_current_version(repository):
    version = repository.pyproject["project"]["version"]
    for chart in (repository.root / "charts").glob("*/Chart.yaml"):
        fields = dict(re.findall(r"^(version|appVersion): *\"?([^\"\s]+)", chart.read_text(), re.MULTILINE))
        assert fields == {"version": version, "appVersion": version}, chart


def test_the_console_command_exists(repository):
    module_name, function_name = repository.pyproject["project"]["scripts"]["ridgeline"].split(":")
    module = importlib.import_module(module_name)
    assert callable(getattr(module, function_name))


def test_python_versions_agree(repository):
    project, tools = repository.pyproject["project"], repository.pyproject["tool"]
    assert project["requires-python"] == ">=3.11"
    assert tools["ruff"]["target-version"] == "py311"
    assert tools["mypy"]["python_version"] == "3.11"
    assert "MINIMUM_PYTHON = (3, 11)" in repository.text("scripts/bootstrap.py")
