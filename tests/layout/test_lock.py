"""The lock is whole, hashed, free of addresses, and agrees with pyproject.toml."""

import re
from itertools import chain

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCKED_EXTRAS = ["gateway", "router", "worker", "operator", "dev"]
BARE_ENVIRONMENT = {**default_environment(), "python_version": "3.11", "python_full_version": "3.11.2"}


@pytest.fixture(scope="module")
def locked(repository):
    """Requirements of the lock with their hashes, in the order of the file."""
    text = re.sub(r"\\\n", " ", repository.text("requirements/ci.lock"))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [
        (Requirement(line.split("--hash")[0].strip()), re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
        for line in lines
    ]


@pytest.fixture(scope="module")
def torch_pin(repository):
    lines = [line for line in repository.text("requirements/torch.txt").splitlines() if line[:1].isalpha()]
    assert len(lines) == 1
    return Requirement(lines[0])


def version_of(requirement):
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", requirement
    return Version(specifier.version)


def test_every_locked_package_has_one_version_and_hashes(locked):
    assert len(locked) > 50
    for requirement, hashes in locked:
        assert version_of(requirement)
        assert hashes, requirement


def test_the_lock_holds_no_address(repository):
    for name in ("requirements/ci.lock", "requirements/torch.txt"):
        text = repository.text(name)
        assert "://" not in text
        assert "--index-url" not in text
        assert "--find-links" not in text


def test_torch_is_pinned_apart_and_what_only_its_cuda_build_needs_is_not(locked, torch_pin):
    names = {canonicalize_name(requirement.name) for requirement, _ in locked}
    assert torch_pin.name == "torch"
    assert "torch" not in names
    assert [name for name in names if name.startswith(("nvidia-", "cuda-"))] == []


def test_the_lock_was_resolved_for_the_torch_that_is_pinned(repository, torch_pin):
    (assumed,) = repository.pyproject["tool"]["uv"]["dependency-metadata"]
    assert assumed["name"] == "torch"
    assert Version(assumed["version"]) == version_of(torch_pin)


def test_every_direct_dependency_is_locked_at_a_version_it_allows(repository, locked, torch_pin):
    project = repository.pyproject["project"]
    direct = list(project["dependencies"])
    for extra in LOCKED_EXTRAS:
        direct += project["optional-dependencies"][extra]
    pins = {
        canonicalize_name(requirement.name): version_of(requirement)
        for requirement in [*(requirement for requirement, _ in locked), torch_pin]
        if requirement.marker is None or requirement.marker.evaluate(BARE_ENVIRONMENT)
    }
    for text in direct:
        requirement = Requirement(text)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_every_dependency_states_the_lowest_version_it_was_run_with(repository):
    project = repository.pyproject["project"]
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        operators = {specifier.operator for specifier in Requirement(text).specifier}
        assert ">=" in operators, text
