"""Reads what a person asked to fetch: a known name, a Hugging Face folder, or a GGUF file."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline_contracts.errors import NotFound, SettingsError
from ridgeline_contracts.model_folder import CONFIG_FILE

from ridgeline_cli.model.catalogue import KnownModel


@dataclass(frozen=True, slots=True)
class WheelSource:
    known: KnownModel


@dataclass(frozen=True, slots=True)
class GgufSource:
    path: Path


@dataclass(frozen=True, slots=True)
class FolderSource:
    path: Path


Source = WheelSource | GgufSource | FolderSource


def read_source(asked: str, catalogue: Mapping[str, KnownModel]) -> Source | None:
    """The source that `asked` means; None if it is neither a known name nor looks like a path.

    A known name wins over a folder of that name in the current directory: write `./NAME` for the folder.
    Raises NotFound for a path that leads nowhere, SettingsError for a file or folder of another kind.
    """
    if asked in catalogue:
        return WheelSource(catalogue[asked])
    path = Path(asked).expanduser().absolute()
    if (path / CONFIG_FILE).is_file():
        return FolderSource(path)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise SettingsError(f"{path} is not a model: give a Hugging Face folder or a .gguf file")
        return GgufSource(path)
    if path.is_dir() and "/" in asked:
        raise NotFound(f"{path} is not a Hugging Face model folder: it has no {CONFIG_FILE}")
    if "/" in asked or asked.endswith(".gguf"):
        raise NotFound(f"there is no file or folder at {path}")
    return None


def default_name(source: Source) -> str:
    """The name under which a source is kept unless --name gives another: the folder's or the file's own."""
    match source:
        case WheelSource(known):
            return known.name
        case GgufSource(path):
            return _as_name(path.stem)
        case FolderSource(path):
            return _as_name(path.name)


def unknown_name(asked: str, catalogue: Mapping[str, KnownModel]) -> NotFound:
    """The error for a name that nothing is known by."""
    known = ", ".join(sorted(catalogue))
    return NotFound(
        f"unknown model {asked!r}: known by name: {known}; or give a Hugging Face folder or .gguf file"
    )


def _as_name(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "model"
