"""The data folder of one platform: its lock, and the keys that stay the same over runs."""

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ridgeline_contracts.errors import Conflict, SettingsError

from ridgeline_cli.up.plan import KeyFiles
from ridgeline_cli.up.private_files import read_private, write_private


def key_files(data_dir: Path) -> KeyFiles:
    keys = data_dir / "keys"
    return KeyFiles(pepper=keys / "pepper", admin_key=keys / "admin", tenant_key=keys / "tenant")


def open_admin_key(files: KeyFiles) -> str:
    """Makes the pepper and the admin key if they are missing; returns the admin key.

    Raises SettingsError for a file that is empty, cannot be read, or that others can read.
    """
    _kept(files.pepper, lambda: secrets.token_hex(32))
    return _kept(files.admin_key, lambda: secrets.token_urlsafe(32))


def _kept(path: Path, make: Callable[[], str]) -> str:
    found = read_private(path)
    if found is None:
        found = make()
        write_private(path, found + "\n")
    if not found.strip():
        raise SettingsError(f"{path} is empty: remove it, and `ridgeline up` makes a new one")
    return found.strip()


@contextmanager
def locked_data_dir(data_dir: Path) -> Iterator[None]:
    """Holds the folder for this process; makes it with mode 0700. A death frees it.

    Raises Conflict if another process has it, SettingsError if it cannot be made.
    """
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(data_dir / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise SettingsError(
            f"cannot use data folder {data_dir} ({error.strerror}): give another --data-dir"
        ) from error
    with os.fdopen(descriptor, "r+") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = opened.read().strip() or "unknown"
            raise Conflict(
                f"another `ridgeline up` (pid {owner}) uses {data_dir}: stop it, or give another --data-dir"
            ) from error
        opened.truncate(0)
        opened.write(f"{os.getpid()}\n")
        opened.flush()
        yield
