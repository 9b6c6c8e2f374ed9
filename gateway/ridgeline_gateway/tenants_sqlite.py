"""Tenants and keys in one SQLite file: the embedded store."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from ridgeline_contracts.errors import Conflict, NotFound, SettingsError
from ridgeline_contracts.ids import KeyId, ModelName, TenantId

from ridgeline_gateway.bucket import BucketLimits
from ridgeline_gateway.tenants import KeyOwner, KeyRecord, Tenant, TenantClass

_Result = TypeVar("_Result")
_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE tenants (
    tenant_id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    models TEXT,
    weight REAL NOT NULL,
    class TEXT NOT NULL,
    rate_micro_per_s INTEGER,
    burst_micro INTEGER,
    trust_group TEXT,
    max_context_tokens INTEGER,
    max_output_tokens INTEGER
) STRICT;
CREATE TABLE keys (
    key_id TEXT PRIMARY KEY,
    tenant_id TEXT NOT NULL REFERENCES tenants ON DELETE CASCADE,
    key_hash BLOB NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
) STRICT;
CREATE INDEX keys_by_tenant ON keys (tenant_id);
"""
_TENANT_COLUMNS = (
    "tenant_id, name, models, weight, class, rate_micro_per_s, burst_micro, trust_group, "
    "max_context_tokens, max_output_tokens"
)
_KEY_COLUMNS = "key_id, tenant_id, key_hash, created_ms, expires_ms, revoked_ms"


class SqliteTenants:
    """A TenantStore in the file at `path`, made if missing with mode 0600. Calls run in a thread, one at a time.

    Raises SettingsError for a file that is not such a store or was written by another version.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        path.touch(mode=0o600)
        try:
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA foreign_keys=ON")
            self._db.execute("PRAGMA busy_timeout=5000")
            self._prepare(path)
        except sqlite3.DatabaseError as error:
            raise SettingsError(
                f"{path} cannot be used as tenant store ({error}): move it away or mend it"
            ) from error

    async def put_tenant(self, tenant: Tenant) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            known = db.execute("SELECT 1 FROM tenants WHERE tenant_id = ?", (tenant.tenant_id,)).fetchone()
            marks = ", ".join("?" * 10)
            updates = ", ".join(f"{name} = excluded.{name}" for name in _TENANT_COLUMNS.split(", ")[1:])
            db.execute(
                f"INSERT INTO tenants ({_TENANT_COLUMNS}) VALUES ({marks}) "
                f"ON CONFLICT (tenant_id) DO UPDATE SET {updates}",
                _tenant_row(tenant),
            )
            return known is None

        return await self._run(write)

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        query = f"SELECT {_TENANT_COLUMNS} FROM tenants WHERE tenant_id = ?"
        row = await self._run(lambda db: db.execute(query, (tenant_id,)).fetchone())
        return None if row is None else _tenant(row)

    async def tenants(self) -> list[Tenant]:
        query = f"SELECT {_TENANT_COLUMNS} FROM tenants ORDER BY tenant_id"
        return [_tenant(row) for row in await self._run(lambda db: db.execute(query).fetchall())]

    async def delete_tenant(self, tenant_id: TenantId) -> bool:
        command = "DELETE FROM tenants WHERE tenant_id = ?"
        return await self._run(lambda db: db.execute(command, (tenant_id,)).rowcount) > 0

    async def add_key(self, key: KeyRecord) -> None:
        def write(db: sqlite3.Connection) -> None:
            if db.execute("SELECT 1 FROM tenants WHERE tenant_id = ?", (key.tenant_id,)).fetchone() is None:
                raise NotFound(f"there is no tenant {key.tenant_id!r}: create it first")
            try:
                db.execute(f"INSERT INTO keys ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", _key_row(key))
            except sqlite3.IntegrityError as error:
                raise Conflict(f"there is a key {key.key_id} already") from error

        await self._run(write)

    async def keys(self, tenant_id: TenantId) -> list[KeyRecord]:
        query = f"SELECT {_KEY_COLUMNS} FROM keys WHERE tenant_id = ? ORDER BY created_ms, key_id"
        return [_key(row) for row in await self._run(lambda db: db.execute(query, (tenant_id,)).fetchall())]

    async def revoke_key(self, key_id: KeyId, *, at_wall_ms: int) -> bool:
        command = "UPDATE keys SET revoked_ms = coalesce(revoked_ms, ?) WHERE key_id = ?"
        return await self._run(lambda db: db.execute(command, (at_wall_ms, key_id)).rowcount) > 0

    async def owner_of(self, key_id: KeyId) -> KeyOwner | None:
        def read(db: sqlite3.Connection) -> KeyOwner | None:
            key = db.execute(f"SELECT {_KEY_COLUMNS} FROM keys WHERE key_id = ?", (key_id,)).fetchone()
            if key is None:
                return None
            query = f"SELECT {_TENANT_COLUMNS} FROM tenants WHERE tenant_id = ?"
            return KeyOwner(_key(key), _tenant(db.execute(query, (key[1],)).fetchone()))

        return await self._run(read)

    async def close(self) -> None:
        await self._run(lambda db: db.close())

    async def _run(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[sqlite3.Connection], _Result]) -> _Result:
        with self._lock:
            return work(self._db)

    def _prepare(self, path: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;")
        elif version != _SCHEMA_VERSION:
            raise SettingsError(
                f"{path} has schema {version}, this version reads {_SCHEMA_VERSION}: upgrade Ridgeline"
            )


def _tenant_row(tenant: Tenant) -> tuple[Any, ...]:
    quota = tenant.quota
    return (
        tenant.tenant_id,
        tenant.name,
        None if tenant.models is None else json.dumps(tenant.models),
        tenant.weight,
        tenant.tenant_class.value,
        None if quota is None else quota.rate_micro_per_s,
        None if quota is None else quota.burst_micro,
        tenant.trust_group,
        tenant.max_context_tokens,
        tenant.max_output_tokens,
    )


def _tenant(row: tuple[Any, ...]) -> Tenant:
    return Tenant(
        tenant_id=TenantId(row[0]),
        name=row[1],
        models=None if row[2] is None else tuple(ModelName(name) for name in json.loads(row[2])),
        weight=row[3],
        tenant_class=TenantClass(row[4]),
        quota=None if row[5] is None else BucketLimits(rate_micro_per_s=row[5], burst_micro=row[6]),
        trust_group=row[7],
        max_context_tokens=row[8],
        max_output_tokens=row[9],
    )


def _key_row(key: KeyRecord) -> tuple[Any, ...]:
    return (key.key_id, key.tenant_id, key.key_hash, key.created_ms, key.expires_ms, key.revoked_ms)


def _key(row: tuple[Any, ...]) -> KeyRecord:
    return KeyRecord(KeyId(row[0]), TenantId(row[1]), row[2], row[3], row[4], row[5])
