import os
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Dot folders hold caches and environments, except these.
DOT_NAMES_KEPT = {".ci", ".gitignore", ".dockerignore"}


@dataclass(frozen=True, slots=True)
class Repository:
    """The checkout that the tests run from, read as files."""

    root: Path
    pyproject: dict[str, Any]

    @property
    def packages(self) -> list[Path]:
        listed: list[str] = self.pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        return [self.root / folder for folder in listed]

    def text(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def files(self) -> Iterator[Path]:
        """Every file that belongs to the repository, build products and caches left out."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if belongs(name) and name != "__pycache__")
            yield from (Path(folder) / name for name in sorted(names) if belongs(name))

    def modules(self) -> Iterator[Path]:
        """Every Python module that a person wrote."""
        return (path for path in self.files() if path.suffix == ".py" and "_pb2" not in path.name)


def belongs(name: str) -> bool:
    return not name.startswith(".") or name in DOT_NAMES_KEPT


@pytest.fixture(scope="session")
def repository() -> Repository:
    root = Path(__file__).resolve().parents[2]
    return Repository(
        root=root, pyproject=tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    )
