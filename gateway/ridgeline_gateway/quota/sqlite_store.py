"""Accounts and ledger in one SQLite file: the embedded store. Several processes of one machine may share it."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.ids import TenantId

from ridgeline_gateway.ledger.record import LedgerRecord, grants_text, read_entry, read_grants
from ridgeline_gateway.quota.account import Account, Bucket, Lease, LeaseId, Settlement
from ridgeline_gateway.quota.limits import Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.steps import Status, StepResult
from ridgeline_gateway.quota.store import LEASE_MS, REMEMBER_MS
from ridgeline_gateway.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE accounts (tenant_id TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT;
CREATE TABLE leases (
    tenant_id TEXT NOT NULL, lease_id TEXT NOT NULL, position INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (tenant_id, lease_id)
) STRICT, WITHOUT ROWID;
CREATE TABLE settled (
    tenant_id TEXT NOT NULL, lease_id TEXT NOT NULL, settled_us INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (tenant_id, lease_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX settled_by_time ON settled (settled_us);
CREATE TABLE ledger (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_id TEXT NOT NULL, lease_id TEXT NOT NULL, settled_us INTEGER NOT NULL, late INTEGER NOT NULL,
    reserved_micro INTEGER NOT NULL, charged_micro INTEGER NOT NULL, refunded_micro INTEGER NOT NULL,
    kv_charged_micro INTEGER NOT NULL, grants TEXT NOT NULL, entry TEXT NOT NULL
) STRICT;
CREATE INDEX ledger_by_tenant ON ledger (tenant_id, settled_us)
"""
_RECORD = (
    "position, lease_id, settled_us, late, reserved_micro, charged_micro, refunded_micro, kv_charged_micro, "
    "grants, entry"
)


class SqliteAccounts:
    """An AccountStore in the file at `path`. Raises SettingsError as SqliteFile does.

    Its clock is this machine's wall clock; where that goes back, time stands still for the buckets. A step that
    returned survives the end of the process; of a power cut the last steps may be lost.
    """

    def __init__(
        self, path: Path, *, clock: Clock, lease_ms: int = LEASE_MS, remember_ms: int = REMEMBER_MS
    ) -> None:
        self._file = SqliteFile(path, (_SCHEMA,), what="quota store", synchronous="NORMAL")
        self._clock = clock
        self._lease_us = lease_ms * 1000
        self._remember_us = remember_ms * 1000

    @property
    def epoch(self) -> int:
        return 0

    async def announce(self, gateway_id: str) -> int:
        # A file does not get lost while its process lives: nobody needs the number.
        return 1

    async def standing(self, tenant_id: TenantId, limits: QuotaLimits) -> StepResult:
        return await self._step(
            tenant_id, None, lambda account, now_us: account.standing(limits, now_us=now_us)
        )

    async def reserve(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, wanted: Amounts
    ) -> StepResult:
        return await self._step(
            tenant_id,
            lease_id,
            lambda account, now_us: account.reserve(
                lease_id, wanted, limits, lease_us=self._lease_us, now_us=now_us
            ),
        )

    async def renew(
        self,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        totals: Amounts,
        *,
        recovered: bool = False,
    ) -> StepResult:
        return await self._step(
            tenant_id,
            lease_id,
            lambda account, now_us: account.renew(
                lease_id, totals, limits, lease_us=self._lease_us, now_us=now_us, recovered=recovered
            ),
        )

    async def restore(
        self, tenant_id: TenantId, limits: QuotaLimits, seen: Amounts, *, seen_us: int
    ) -> StepResult:
        return await self._step(
            tenant_id, None, lambda account, now_us: account.restore(seen, seen_us, limits, now_us=now_us)
        )

    async def settle(
        self,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        charged: Amounts,
        entry: str,
        *,
        recovered: bool = False,
    ) -> StepResult:
        return await self._step(
            tenant_id,
            lease_id,
            lambda account, now_us: account.settle(
                lease_id, charged, limits, now_us=now_us, recovered=recovered
            ),
            entry=entry,
        )

    async def records(
        self, tenant_id: TenantId, *, since_ms: int, until_ms: int, after: str | None, most: int
    ) -> list[LedgerRecord]:
        query = (
            f"SELECT {_RECORD} FROM ledger WHERE tenant_id = ? AND settled_us >= ? AND settled_us < ? "
            "AND position > ? ORDER BY position LIMIT ?"
        )
        words = (tenant_id, since_ms * 1000, until_ms * 1000, int(after or 0), most)
        return [_record(row) for row in await self._file.run(lambda db: db.execute(query, words).fetchall())]

    async def close(self) -> None:
        await self._file.close()

    async def _step(
        self,
        tenant_id: TenantId,
        lease_id: LeaseId | None,
        act: Callable[[Account, int], StepResult],
        *,
        entry: str | None = None,
    ) -> StepResult:
        def write(db: sqlite3.Connection) -> StepResult:
            account = _load(db, tenant_id, lease_id)
            result = act(account, round(self._clock.wall_ms() * 1000))
            _save(db, tenant_id, account)
            if entry is not None and lease_id is not None and result.status is Status.DONE:
                self._write_settlement(db, tenant_id, lease_id, account.settled[lease_id], entry)
            return result

        return await self._file.write(write)

    def _write_settlement(
        self,
        db: sqlite3.Connection,
        tenant_id: TenantId,
        lease_id: LeaseId,
        settled: Settlement,
        entry: str,
    ) -> None:
        db.execute("DELETE FROM settled WHERE settled_us < ?", (settled.settled_us - self._remember_us,))
        state = json.dumps((settled.reserved, settled.charged, settled.refunded))
        db.execute(
            "INSERT INTO settled VALUES (?, ?, ?, ?)", (tenant_id, lease_id, settled.settled_us, state)
        )
        columns = _RECORD.partition(", ")[2]
        db.execute(
            f"INSERT INTO ledger (tenant_id, {columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                tenant_id,
                lease_id,
                settled.settled_us,
                int(settled.late),
                settled.reserved.tokens_micro,
                settled.charged.tokens_micro,
                settled.refunded.tokens_micro,
                settled.charged.kv_micro,
                grants_text(settled.grants),
                entry,
            ),
        )


def _load(db: sqlite3.Connection, tenant_id: TenantId, lease_id: LeaseId | None) -> Account:
    """The account with all its leases, and of the settled ones only that at hand."""
    account = Account()
    row = db.execute("SELECT state FROM accounts WHERE tenant_id = ?", (tenant_id,)).fetchone()
    if row is not None:
        account.updated_us, account.next_order, first, second, *lives = json.loads(row[0])
        account.run, account.run_began_us, account.known_us, account.moved = lives
        account.buckets = (_bucket(first), _bucket(second))
    query = "SELECT lease_id, position, state FROM leases WHERE tenant_id = ? ORDER BY position"
    for name, order, state in db.execute(query, (tenant_id,)):
        reserved, refundable, expires_us, grants = json.loads(state)
        pairs = [(at_us, amount) for at_us, amount in grants]
        account.leases[LeaseId(name)] = Lease(reserved, refundable, expires_us, order, pairs)
    query = "SELECT settled_us, state FROM settled WHERE tenant_id = ? AND lease_id = ?"
    row = db.execute(query, (tenant_id, lease_id)).fetchone()
    if row is not None and lease_id is not None:
        reserved, charged, refunded = (Amounts(*held) for held in json.loads(row[1]))
        account.settled[lease_id] = Settlement(reserved, charged, refunded, (), False, row[0])
    return account


def _save(db: sqlite3.Connection, tenant_id: TenantId, account: Account) -> None:
    buckets = [_bucket_state(bucket) for bucket in account.buckets]
    lives = (account.run, account.run_began_us, account.known_us, account.moved)
    state = json.dumps((account.updated_us, account.next_order, *buckets, *lives))
    db.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?)", (tenant_id, state))
    for lease_id in account.touched:
        lease = account.leases.get(lease_id)
        if lease is None:
            db.execute("DELETE FROM leases WHERE tenant_id = ? AND lease_id = ?", (tenant_id, lease_id))
        else:
            state = json.dumps((lease.reserved, lease.refundable, lease.expires_us, lease.grants))
            words = (tenant_id, lease_id, lease.order, state)
            db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", words)


def _bucket_state(bucket: Bucket) -> tuple[int | None, ...]:
    limits = bucket.limits
    rate, burst = (None, None) if limits is None else (limits.rate_micro_per_s, limits.burst_micro)
    return rate, burst, bucket.level, bucket.carry, bucket.refundable, bucket.held


def _bucket(state: list[Any]) -> Bucket:
    rate, burst, *numbers = state
    return Bucket(None if rate is None else BucketLimits(rate, burst), *numbers)


def _record(row: tuple[Any, ...]) -> LedgerRecord:
    position, lease_id, settled_us, late, reserved, charged, refunded, kv_charged, grants, entry = row
    return LedgerRecord(
        position=str(position),
        lease_id=lease_id,
        settled_us=settled_us,
        late=bool(late),
        reserved_micro=reserved,
        charged_micro=charged,
        refunded_micro=refunded,
        kv_charged_micro=kv_charged,
        grants=read_grants(grants),
        entry=read_entry(entry),
    )
