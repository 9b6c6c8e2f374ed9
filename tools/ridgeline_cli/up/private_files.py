"""Small files that only their owner may read: keys and the ready file."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ridgeline_contracts.errors import SettingsError


def write_private(path: Path, text: str) -> None:
    """Writes `text` with mode 0600, whole or not at all: readers see the old file or the new one.

    Makes missing parent folders with mode 0700. Raises SettingsError where that is not allowed.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # mkstemp makes the file with mode 0600: at no moment can anybody else open it.
        descriptor, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise SettingsError(
            f"cannot write {path} ({error.strerror}): mend that, or choose another path"
        ) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        Path(made).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(made)
        raise


def read_private(path: Path) -> str | None:
    """The text of a file that `write_private` wrote, or None where there is none.

    Raises SettingsError if others may read it, or if it cannot be read.
    """
    try:
        mode = path.stat().st_mode & 0o777
        if mode & 0o077:
            raise SettingsError(
                f"{path} has mode {mode:o}, so that others can read it: run `chmod 600 {path}`"
            )
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path} ({error}): mend its owner and mode, or remove it") from error
