"""One SQLite file: opened safely, migrated step by step, used from threads one call at a time."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ridgeline_contracts.errors import SettingsError

_Result = TypeVar("_Result")


class SqliteFile:
    """`migrations[k]` leads from schema k to k + 1. The file is made if missing, with mode 0600.

    `run` and `write` execute in a thread; several processes may share the file. Raises SettingsError for a file
    that is no such store or was written by a later version.
    """

    def __init__(
        self, path: Path, migrations: Sequence[str], *, what: str, synchronous: str = "FULL"
    ) -> None:
        self._lock = threading.Lock()
        path.touch(mode=0o600)
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            # Before WAL: several processes may open the file at once, and switching takes a lock.
            self._db.execute("PRAGMA busy_timeout=5000")
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute(f"PRAGMA synchronous={synchronous}")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._migrate(path, migrations)
        except sqlite3.DatabaseError as error:
            raise SettingsError(
                f"{path} cannot be used as {what} ({error}): move it away or mend it"
            ) from error

    async def run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """For reads and single statements."""
        return await asyncio.to_thread(self._locked, work)

    async def write(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """All of `work` or nothing of it, apart from every other writer."""
        return await asyncio.to_thread(self._locked, lambda db: _in_transaction(db, work))

    async def close(self) -> None:
        await self.run(lambda db: db.close())

    def _locked(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        with self._lock:
            return work(self._db)

    def _migrate(self, path: Path, migrations: Sequence[str]) -> None:
        def step(db: sqlite3.Connection) -> None:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(migrations):
                raise SettingsError(
                    f"{path} has schema {version}, this version reads {len(migrations)}: upgrade Ridgeline"
                )
            for number, script in enumerate(migrations[version:], start=version + 1):
                for statement in script.split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")

        if self._db.execute("PRAGMA user_version").fetchone()[0] != len(migrations):
            _in_transaction(self._db, step)


def _in_transaction(db: sqlite3.Connection, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
    db.execute("BEGIN IMMEDIATE")
    try:
        result = work(db)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return result
