"""Takes a Hugging Face folder in place: links to its files and their hashes, no copy of weights."""

import json
from pathlib import Path

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.model_folder import TOKENIZER_FILE, ModelFile, model_file_names, sha256_of_file
from tokenizers import Tokenizer

from ridgeline_cli.model.progress import Progress


def link_folder(source: Path, folder: Path, *, progress: Progress) -> tuple[ModelFile, ...]:
    """Fills `folder` with symbolic links to the model files of `source`; returns them with their hashes.

    Raises NotFound for a missing file, SettingsError for a file that is not what it should be.
    """
    names = model_file_names(source)
    for name in names:
        if name.endswith(".safetensors"):
            check_safetensors(source / name)
    check_tokenizer(source / TOKENIZER_FILE)
    sizes = {name: (source / name).stat().st_size for name in names}
    folder.mkdir(parents=True)
    files: list[ModelFile] = []
    with progress.stage("hash", sum(sizes.values())) as advance:
        done_bytes = 0
        for name in names:
            # The last target: a hub's snapshot folder is itself links into its store.
            real = (source / name).resolve()
            before = real.stat()
            files.append(ModelFile(name, before.st_size, sha256_of_file(real), mtime_ns=before.st_mtime_ns))
            (folder / name).symlink_to(real)
            done_bytes += before.st_size
            advance(done_bytes)
    return tuple(files)


def check_safetensors(path: Path) -> None:
    """Checks that the file has a header and is as long as the header says; raises SettingsError if not."""
    size_bytes = path.stat().st_size
    with path.open("rb") as opened:
        header_bytes = int.from_bytes(opened.read(8), "little")
        if not 0 < header_bytes <= size_bytes - 8:
            raise SettingsError(f"{path} is not a safetensors file of {size_bytes} bytes: download it again")
        try:
            entries = json.loads(opened.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise SettingsError(f"{path} has a damaged header ({error!r}): download it again") from error
    wanted_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != wanted_bytes:
        raise SettingsError(
            f"{path} has {size_bytes} bytes, its header asks for {wanted_bytes}: download it again"
        )


def check_tokenizer(path: Path) -> None:
    """Checks that tokenizer.json can be loaded; raises SettingsError if not."""
    try:
        Tokenizer.from_file(str(path))
    except Exception as error:  # the Rust library raises nothing narrower
        raise SettingsError(f"{path} is not a tokenizer ({error}): download it again") from error
