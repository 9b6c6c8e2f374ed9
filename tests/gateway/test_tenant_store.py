"""The contract of a tenant store, over the SQLite one; and the check of keys on top of it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import Conflict, NotAuthenticated, NotFound, SettingsError
from ridgeline_contracts.ids import KeyId, ModelName, TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.bucket import BucketLimits
from ridgeline_gateway.tenants import KeyOwner, KeyRecord, Tenant, TenantClass
from ridgeline_gateway.tenants_sqlite import SqliteTenants

PEPPER = b"a pepper for the tests"
ACME = Tenant(TenantId("acme"), "Acme")
FULL = Tenant(
    TenantId("full"),
    "All fields",
    models=(ModelName("a"), ModelName("b")),
    weight=2.5,
    tenant_class=TenantClass.BATCH,
    quota=BucketLimits(rate_micro_per_s=1, burst_micro=2**53 - 1),
    trust_group="friends",
    max_context_tokens=10,
    max_output_tokens=5,
)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteTenants]:
    opened = SqliteTenants(tmp_path / "tenants.sqlite3")
    yield opened
    await opened.close()


def record(key_id: str, tenant: Tenant = ACME, *, expires_ms: int | None = None) -> KeyRecord:
    return KeyRecord(KeyId(key_id), tenant.tenant_id, b"h" * 32, created_ms=1, expires_ms=expires_ms)


async def test_tenants_come_back_as_they_went_in(store: SqliteTenants) -> None:
    assert await store.put_tenant(FULL) is True
    assert await store.put_tenant(ACME) is True
    assert await store.put_tenant(ACME) is False
    assert await store.tenants() == [ACME, FULL]
    assert await store.tenant(TenantId("none")) is None


async def test_replacing_a_tenant_keeps_its_keys(store: SqliteTenants) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    renamed = Tenant(TenantId("acme"), "Acme Ltd")
    await store.put_tenant(renamed)
    assert await store.owner_of(KeyId("k1")) == KeyOwner(record("k1"), renamed)


async def test_deleting_a_tenant_deletes_its_keys(store: SqliteTenants) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    assert await store.delete_tenant(TenantId("acme")) is True
    assert await store.owner_of(KeyId("k1")) is None
    assert await store.delete_tenant(TenantId("acme")) is False


async def test_keys_need_a_tenant_and_an_id_of_their_own(store: SqliteTenants) -> None:
    with pytest.raises(NotFound):
        await store.add_key(record("k1"))
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    with pytest.raises(Conflict):
        await store.add_key(record("k1"))
    await store.add_key(record("k2"))
    assert [key.key_id for key in await store.keys(TenantId("acme"))] == ["k1", "k2"]


async def test_revoking_twice_keeps_the_first_time(store: SqliteTenants) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    assert await store.revoke_key(KeyId("k1"), at_wall_ms=5) is True
    assert await store.revoke_key(KeyId("k1"), at_wall_ms=9) is True
    assert await store.revoke_key(KeyId("none"), at_wall_ms=9) is False
    owner = await store.owner_of(KeyId("k1"))
    assert owner is not None
    assert owner.key.revoked_ms == 5


async def test_what_was_written_is_there_after_a_restart_and_only_its_owner_may_read_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "tenants.sqlite3"
    first = SqliteTenants(path)
    await first.put_tenant(FULL)
    # No orderly close: as after a kill.
    second = SqliteTenants(path)
    assert await second.tenants() == [FULL]
    assert path.stat().st_mode & 0o777 == 0o600
    await first.close()
    await second.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tenants.sqlite3"
    path.write_bytes(b"not a database, but long enough to be looked at" * 100)
    with pytest.raises(SettingsError, match=str(path)):
        SqliteTenants(path)


async def test_a_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "tenants.sqlite3"
    await SqliteTenants(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SettingsError, match="schema 99"):
        SqliteTenants(path)


async def test_a_key_works_until_it_expires_or_is_revoked_elsewhere(store: SqliteTenants) -> None:
    clock = VirtualClock(epoch_ms=0)
    key = generate_key(lambda count: bytes(count))
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0, expires_ms=10_000))
    authenticator = Authenticator(store, pepper=PEPPER, clock=clock, cache_ms=1000)
    header = f"Bearer {key.reveal()}"
    assert await authenticator.tenant(header) == ACME
    clock.advance(5000)
    assert await authenticator.tenant(header) == ACME
    await store.revoke_key(key.key_id, at_wall_ms=5000)
    # Another process revoked it: this one finds out when what it remembers is a second old.
    clock.advance(999)
    assert await authenticator.tenant(header) == ACME
    clock.advance(1)
    with pytest.raises(NotAuthenticated):
        await authenticator.tenant(header)


async def test_expiry_is_exact_even_while_the_key_is_remembered(store: SqliteTenants) -> None:
    clock = VirtualClock()
    key = generate_key(lambda count: bytes(count))
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0, expires_ms=100))
    authenticator = Authenticator(store, pepper=PEPPER, clock=clock, cache_ms=1000)
    clock.advance(99)
    await authenticator.tenant(f"bearer {key.reveal()}")
    clock.advance(1)
    with pytest.raises(NotAuthenticated):
        await authenticator.tenant(f"bearer {key.reveal()}")


async def test_a_new_key_works_at_once_though_it_was_asked_for_before(store: SqliteTenants) -> None:
    key = generate_key(lambda count: bytes(count))
    authenticator = Authenticator(store, pepper=PEPPER, clock=VirtualClock(), cache_ms=1000)
    with pytest.raises(NotAuthenticated):
        await authenticator.tenant(f"Bearer {key.reveal()}")
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0))
    assert await authenticator.tenant(f"Bearer {key.reveal()}") == ACME
