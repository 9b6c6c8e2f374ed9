"""Tenants and keys in one SQLite file: the embedded store."""

import sqlite3
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import Conflict, NotFound
from ridgeline_contracts.ids import KeyId, TenantId

from ridgeline_gateway.prices.price import Price, price_document, read_price, version_exists
from ridgeline_gateway.sqlite_file import SqliteFile
from ridgeline_gateway.tenant_documents import read_tenant, tenant_document
from ridgeline_gateway.tenants import KeyOwner, KeyRecord, Tenant

_FIRST = """
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
CREATE INDEX keys_by_tenant ON keys (tenant_id)
"""
# A tenant became one document, the same in every store.
_DOCUMENTS = """
ALTER TABLE tenants ADD COLUMN document TEXT NOT NULL DEFAULT '';
UPDATE tenants SET document = json_object(
    'tenant_id', tenant_id, 'name', name, 'models', json(models), 'weight', weight, 'tenant_class', class,
    'quota', CASE WHEN burst_micro IS NULL THEN NULL
             ELSE json_object('rate_micro_per_s', rate_micro_per_s, 'burst_micro', burst_micro) END,
    'trust_group', trust_group, 'max_context_tokens', max_context_tokens, 'max_output_tokens', max_output_tokens);
ALTER TABLE tenants DROP COLUMN name;
ALTER TABLE tenants DROP COLUMN models;
ALTER TABLE tenants DROP COLUMN weight;
ALTER TABLE tenants DROP COLUMN class;
ALTER TABLE tenants DROP COLUMN rate_micro_per_s;
ALTER TABLE tenants DROP COLUMN burst_micro;
ALTER TABLE tenants DROP COLUMN trust_group;
ALTER TABLE tenants DROP COLUMN max_context_tokens;
ALTER TABLE tenants DROP COLUMN max_output_tokens
"""
_PRICES = """
CREATE TABLE prices (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL, version TEXT NOT NULL, document TEXT NOT NULL, UNIQUE (model, version)
) STRICT
"""
_KEY_COLUMNS = "key_id, tenant_id, key_hash, created_ms, expires_ms, revoked_ms"


class SqliteTenants:
    """A TenantStore in the file at `path`. Raises SettingsError as SqliteFile does."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, (_FIRST, _DOCUMENTS, _PRICES), what="tenant store")

    async def put_tenant(self, tenant: Tenant) -> bool:
        def write(db: sqlite3.Connection) -> bool:
            known = db.execute("SELECT 1 FROM tenants WHERE tenant_id = ?", (tenant.tenant_id,)).fetchone()
            db.execute(
                "INSERT INTO tenants (tenant_id, document) VALUES (?, ?) "
                "ON CONFLICT (tenant_id) DO UPDATE SET document = excluded.document",
                (tenant.tenant_id, tenant_document(tenant)),
            )
            return known is None

        return await self._file.write(write)

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        return await self._file.run(lambda db: _tenant(db, tenant_id))

    async def tenants(self) -> list[Tenant]:
        query = "SELECT document FROM tenants ORDER BY tenant_id"
        rows = await self._file.run(lambda db: db.execute(query).fetchall())
        return [read_tenant(document) for (document,) in rows]

    async def delete_tenant(self, tenant_id: TenantId) -> bool:
        command = "DELETE FROM tenants WHERE tenant_id = ?"
        return await self._file.run(lambda db: db.execute(command, (tenant_id,)).rowcount) > 0

    async def add_key(self, key: KeyRecord) -> None:
        await self._file.write(lambda db: _add_key(db, key))

    async def rotate_keys(self, key: KeyRecord, *, others_end_wall_ms: int) -> None:
        def write(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE keys SET expires_ms = min(coalesce(expires_ms, ?1), ?1) WHERE tenant_id = ?2",
                (others_end_wall_ms, key.tenant_id),
            )
            _add_key(db, key)

        await self._file.write(write)

    async def keys(self, tenant_id: TenantId) -> list[KeyRecord]:
        query = f"SELECT {_KEY_COLUMNS} FROM keys WHERE tenant_id = ? ORDER BY created_ms, key_id"
        return [
            _key(row) for row in await self._file.run(lambda db: db.execute(query, (tenant_id,)).fetchall())
        ]

    async def revoke_key(self, key_id: KeyId, *, at_wall_ms: int) -> bool:
        command = "UPDATE keys SET revoked_ms = coalesce(revoked_ms, ?) WHERE key_id = ?"
        return await self._file.run(lambda db: db.execute(command, (at_wall_ms, key_id)).rowcount) > 0

    async def freeze_price(self, price: Price) -> None:
        def write(db: sqlite3.Connection) -> None:
            row = (price.model, price.version, price_document(price))
            try:
                db.execute("INSERT INTO prices (model, version, document) VALUES (?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise version_exists(price) from error

        await self._file.write(write)

    async def prices(self) -> list[Price]:
        query = "SELECT document FROM prices ORDER BY position"
        rows = await self._file.run(lambda db: db.execute(query).fetchall())
        return [read_price(document) for (document,) in rows]

    async def owner_of(self, key_id: KeyId) -> KeyOwner | None:
        def read(db: sqlite3.Connection) -> KeyOwner | None:
            query = (
                f"SELECT {_KEY_COLUMNS}, document FROM keys JOIN tenants USING (tenant_id) WHERE key_id = ?"
            )
            row = db.execute(query, (key_id,)).fetchone()
            return None if row is None else KeyOwner(_key(row[:-1]), read_tenant(row[-1]))

        return await self._file.run(read)

    async def close(self) -> None:
        await self._file.close()


def _tenant(db: sqlite3.Connection, tenant_id: TenantId) -> Tenant | None:
    row = db.execute("SELECT document FROM tenants WHERE tenant_id = ?", (tenant_id,)).fetchone()
    return None if row is None else read_tenant(row[0])


def _add_key(db: sqlite3.Connection, key: KeyRecord) -> None:
    if _tenant(db, key.tenant_id) is None:
        raise NotFound(f"there is no tenant {key.tenant_id!r}: create it first")
    row = (key.key_id, key.tenant_id, key.key_hash, key.created_ms, key.expires_ms, key.revoked_ms)
    try:
        db.execute(f"INSERT INTO keys ({_KEY_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)
    except sqlite3.IntegrityError as error:
        raise Conflict(f"there is a key {key.key_id} already") from error


def _key(row: tuple[Any, ...]) -> KeyRecord:
    return KeyRecord(KeyId(row[0]), TenantId(row[1]), row[2], row[3], row[4], row[5])
