"""Each package is real, typed, listed everywhere once, and shadows nothing."""

import ast
import operator
import sys
from pathlib import Path

import pytest

MAX_MODULE_LINES = 400


def test_the_build_the_types_and_the_layers_name_the_packages_that_are_there(repository):
    listed = [folder.name for folder in repository.packages]
    tools = repository.pyproject["tool"]
    on_disk = {path.parent.name for path in repository.root.glob("*/ridgeline_*/__init__.py")}
    assert set(listed) == on_disk
    assert tools["mypy"]["packages"] == listed
    assert tools["importlinter"]["root_packages"] == listed


def test_an_editable_install_reaches_every_component(repository):
    folders = repository.pyproject["tool"]["hatch"]["build"]["dev-mode-dirs"]
    assert sorted(folders) == sorted({folder.parent.name for folder in repository.packages})


def test_every_package_is_typed_and_says_what_it_is(repository):
    for folder in repository.packages:
        assert (folder / "py.typed").is_file(), f"{folder} has no py.typed"
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), f"{folder}/__init__.py has no docstring"


def test_no_package_is_empty(repository):
    for folder in repository.packages:
        modules = [path for path in repository.modules() if folder in path.parents]
        defined = [
            node
            for path in modules
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ]
        assert defined, f"{folder} defines nothing"


@pytest.mark.parametrize("folder", ["core", "gateway", "router", "worker", "operator", "tools"])
def test_a_component_folder_is_no_package_itself(repository, folder):
    # Least of all operator/: started in the checkout, Python would take it for its own module of that name.
    assert not (repository.root / folder / "__init__.py").exists()


def test_no_folder_of_tests_is_a_package(repository):
    tests = repository.root / "tests"
    assert [path for path in tests.rglob("__init__.py") if tests / "support" not in path.parents] == []


def test_no_module_is_named_like_one_of_the_standard_library(repository):
    shadows = [
        str(path.relative_to(repository.root))
        for path in repository.modules()
        if (path.parent.name if path.name == "__init__.py" else path.stem) in sys.stdlib_module_names
    ]
    assert shadows == []


def test_no_module_is_too_long_to_read_in_one_sitting(repository):
    lengths = {
        str(path.relative_to(repository.root)): len(path.read_text(encoding="utf-8").splitlines())
        for path in repository.modules()
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_MODULE_LINES} == {}


def test_the_standard_librarys_operator_is_the_one_that_is_imported(repository):
    assert repository.root not in Path(operator.__file__).parents
