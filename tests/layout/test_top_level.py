"""The repository's top level is the one that the architecture describes."""

import re

DESIGNED = {
    ".ci",
    "bench",
    "charts",
    "core",
    "dashboards",
    "docs",
    "gateway",
    "operator",
    "requirements",
    "router",
    "scripts",
    "tests",
    "tools",
    "worker",
}
DESIGNED_FILES = {
    ".dockerignore",
    ".gitignore",
    "CHANGELOG.md",
    "Dockerfile",
    "LICENSE",
    "Makefile",
    "README.md",
    "pyproject.toml",
}
# Where one machine keeps things; written in two parts so that this file does not name them itself.
HOST_PATHS = re.compile(r"(?<![\w.$}~)/-])/" + r"(?:work|opt|root|tmp/w|tmp/claude)(?=/|\b(?!-))")
REGISTRY_HOSTS = re.compile(
    "|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "npmjs" + r"\.(?:org|com)"])
)
DOWNLOADS = re.compile("deb" + r"\.debian\.org")


def test_every_top_level_folder_and_file_is_one_of_the_design(repository):
    seen = {path.relative_to(repository.root).parts[0] for path in repository.files()}
    folders = {name for name in seen if (repository.root / name).is_dir()}
    assert folders <= DESIGNED
    assert seen - folders == DESIGNED_FILES


def test_each_component_has_its_folder(repository):
    assert {folder.parent.name for folder in repository.packages} == {
        "core",
        "gateway",
        "router",
        "worker",
        "operator",
        "tools",
    }


def test_no_text_names_a_path_or_a_host_of_the_machine_it_was_written_on(repository):
    found = []
    for path in repository.files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if any(pattern.search(line) for pattern in (HOST_PATHS, REGISTRY_HOSTS, DOWNLOADS)):
                found.append(f"{path.relative_to(repository.root)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_license_is_the_whole_apache_2_text(repository):
    text = repository.text("LICENSE")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert repository.pyproject["project"]["license"] == "Apache-2.0"


def test_a_shell_script_can_be_run_and_stops_at_its_first_error(repository):
    scripts = [path for path in repository.files() if path.suffix == ".sh"]
    scripts.append(repository.root / ".ci" / "run")
    for script in scripts:
        assert script.stat().st_mode & 0o111, f"{script} is not executable"
        assert "set -euo pipefail" in script.read_text(encoding="utf-8"), f"{script} goes on after an error"
