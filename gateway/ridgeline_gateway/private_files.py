"""Secrets in files that only their owner may read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from ridgeline_contracts.errors import SettingsError


def read_secret(path: Path, *, flag: str) -> str:
    """The file's text without surrounding blanks. Raises SettingsError if it is missing, empty, or open to others."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(
            f"{flag} {path} cannot be read ({error.strerror}): give a file with a secret"
        ) from error
    if mode & 0o077:
        raise SettingsError(f"{flag} {path} has mode {mode:04o}: others may read it; run chmod 600 {path}")
    if not text:
        raise SettingsError(f"{flag} {path} is empty: write a secret into it")
    return text


def kept_secret(path: Path, make: Callable[[], str], *, flag: str) -> str:
    """The secret at `path`, made with mode 0600 if there is no file yet."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret(path, flag=flag)
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written ({error.strerror}): give another --data-dir"
        ) from error
    secret = make()
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(secret + "\n")
    return secret
