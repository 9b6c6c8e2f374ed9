"""The cache folder: finished models, staging for unfinished ones, and a lock for each name.

HOME/models/NAME/    a finished model; appears by one rename, manifest.json included
HOME/staging/NAME/   what an unfinished fetch has so far; gone once the model is there
HOME/locks/NAME.lock held (flock) by the one process that fetches or removes NAME
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import InvalidRequest, NotFound, SettingsError
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder, manifest_files, read_manifest

from ridgeline_cli.model.sizes import bytes_below

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One name in the cache."""

    name: str
    state: str
    """ready, or incomplete: begun and not finished, or without a manifest."""
    path: Path
    origin: dict[str, Any] | None
    size_bytes: int
    weights_revision: str | None


@dataclass(frozen=True, slots=True)
class ModelCache:
    """Paths and moves inside one cache folder. `home` need not exist yet."""

    home: Path

    def folder(self, name: str) -> Path:
        """Where the finished model `name` lies or will lie. Raises InvalidRequest for an impossible name."""
        return self.home / "models" / _checked(name)

    def staging(self, name: str) -> Path:
        return self.home / "staging" / _checked(name)

    def manifest(self, name: str) -> dict[str, Any] | None:
        """The manifest of a finished model, None if `name` is not (wholly) there. May raise SettingsError."""
        folder = self.folder(name)
        return read_manifest(folder) if folder.is_dir() else None

    def load(self, name: str) -> ModelFolder:
        """A finished model. Raises NotFound, naming what is there, and what load_model_folder raises."""
        if self.manifest(name) is None:
            ready = [entry.name for entry in self.entries() if entry.state == "ready"]
            there = f"fetched so far: {', '.join(ready)}" if ready else "nothing is fetched yet"
            raise NotFound(f"no model {name!r} in {self.home} ({there}): run `ridgeline model fetch {name}`")
        return load_model_folder(self.folder(name))

    def entries(self) -> list[CacheEntry]:
        """All names, finished or begun, sorted. Reads manifests only."""
        found = {path.name for kind in ("models", "staging") for path in _folders(self.home / kind)}
        return [self._entry(name) for name in sorted(found) if _NAME.fullmatch(name)]

    @contextmanager
    def lock(self, name: str, *, on_wait: Callable[[], None]) -> Iterator[None]:
        """Holds the lock of `name`; calls `on_wait` first if another process has it. A death frees it."""
        path = self.home / "locks" / f"{_checked(name)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(opened, fcntl.LOCK_EX)
            yield

    def publish(self, name: str, built: Path) -> None:
        """Moves a finished folder to its place, by one rename. Hold the lock. Readers never see a part.

        With an old one in the way there is a moment without either; a kill then leaves `built` in staging,
        and the next fetch takes it from there.
        """
        target = self.folder(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            retired = self.staging(name) / "retired"
            _delete(retired)
            target.rename(retired)
        built.rename(target)
        _force_directory_to_disk(target.parent)
        _delete(self.staging(name))

    def remove(self, name: str) -> int:
        """Deletes a model and what is staged of it; returns the bytes freed. Linked files stay untouched.

        Hold the lock. Raises NotFound if there is nothing.
        """
        places = [path for path in (self.folder(name), self.staging(name)) if path.exists()]
        if not places:
            self.load(name)
        freed_bytes = sum(bytes_below(path) for path in places)
        for path in places:
            _delete(path)
        return freed_bytes

    def _entry(self, name: str) -> CacheEntry:
        folder = self.folder(name)
        try:
            manifest = self.manifest(name)
            files = () if manifest is None else manifest_files(folder, manifest)
        except SettingsError:
            # A listing must survive one bad folder; `show` and `verify` say what is wrong with it.
            manifest = None
        if manifest is None:
            place = folder if folder.is_dir() else self.staging(name)
            return CacheEntry(name, "incomplete", place, None, bytes_below(place), None)
        size_bytes = sum(file.size_bytes for file in files)
        return CacheEntry(name, "ready", folder, manifest["origin"], size_bytes, manifest["weights_revision"])


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot name a model: use small letters, digits, '.', '_', '-'; first a letter or digit"
        )
    return name


def _folders(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _force_directory_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
