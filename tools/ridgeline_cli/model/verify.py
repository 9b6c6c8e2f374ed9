"""Hashes a finished model again and compares it with its manifest."""

from dataclasses import dataclass

from ridgeline_contracts.model_folder import ModelFile, manifest_files, sha256_of_file, weights_revision

from ridgeline_cli.model.cache import ModelCache
from ridgeline_cli.model.progress import Progress


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found. Nothing wrong means that every byte is as it was when the model was fetched."""

    name: str
    files: int
    weights_revision: str
    problems: tuple[str, ...]


def verify_model(cache: ModelCache, name: str, *, progress: Progress) -> Verification:
    """Reads all of a model's files. Raises NotFound if it is not there, SettingsError for a bad manifest."""
    folder, manifest = cache.folder(name), cache.manifest(name)
    if manifest is None:
        cache.load(name)
    assert manifest is not None
    files = manifest_files(folder, manifest)
    problems: list[str] = []
    with progress.stage(f"verify {name}", sum(file.size_bytes for file in files)) as advance:
        done_bytes = 0
        for file in files:
            problems += _problems(cache, name, file)
            done_bytes += file.size_bytes
            advance(done_bytes)
    revision = weights_revision(files)
    if revision != manifest["weights_revision"]:
        problems.append(
            f"the manifest's revision is {manifest['weights_revision']}, its files make {revision}"
        )
    return Verification(name, len(files), revision, tuple(problems))


def _problems(cache: ModelCache, name: str, file: ModelFile) -> list[str]:
    path = cache.folder(name) / file.name
    if not path.is_file():
        return [f"{file.name} is missing"]
    size_bytes = path.stat().st_size
    if size_bytes != file.size_bytes:
        return [f"{file.name} has {size_bytes} bytes, expected {file.size_bytes}"]
    sha256 = sha256_of_file(path)
    return [] if sha256 == file.sha256 else [f"{file.name} has SHA-256 {sha256}, expected {file.sha256}"]
