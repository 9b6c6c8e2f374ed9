"""The contract of a tenant store, over both of them; and the check of keys on top of it."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import Conflict, NotAuthenticated, NotFound, SettingsError
from ridgeline_contracts.ids import KeyId, ModelName, TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_gateway import tenants_sqlite
from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.prices.price import Price, TokenRates
from ridgeline_gateway.quota.limits import BucketLimits
from ridgeline_gateway.redis_link import RedisLink, StoreUnreachable
from ridgeline_gateway.settings import TimingSettings
from ridgeline_gateway.tenants import KeyOwner, KeyRecord, StoreLoss, Tenant, TenantClass, TenantStore
from ridgeline_gateway.tenants_redis import RedisTenants
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
    kv_quota=BucketLimits(rate_micro_per_s=7, burst_micro=8),
    max_concurrent_requests=3,
    debt_cap_micro=9,
    on_store_loss=StoreLoss.CLOSED,
)


@pytest.fixture(params=["sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TenantStore]:
    opened: TenantStore
    if request.param == "sqlite":
        opened = SqliteTenants(tmp_path / "tenants.sqlite3")
    else:
        opened = RedisTenants(RedisLink(request.getfixturevalue("redis_url")))
    yield opened
    await opened.close()


def record(key_id: str, tenant: Tenant = ACME, *, expires_ms: int | None = None) -> KeyRecord:
    return KeyRecord(KeyId(key_id), tenant.tenant_id, b"h" * 32, created_ms=1, expires_ms=expires_ms)


async def test_tenants_come_back_as_they_went_in(store: TenantStore) -> None:
    assert await store.put_tenant(FULL) is True
    assert await store.put_tenant(ACME) is True
    assert await store.put_tenant(ACME) is False
    assert await store.tenants() == [ACME, FULL]
    assert await store.tenant(TenantId("none")) is None


async def test_replacing_a_tenant_keeps_its_keys(store: TenantStore) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    renamed = Tenant(TenantId("acme"), "Acme Ltd")
    await store.put_tenant(renamed)
    assert await store.owner_of(KeyId("k1")) == KeyOwner(record("k1"), renamed)


async def test_deleting_a_tenant_deletes_its_keys(store: TenantStore) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    assert await store.delete_tenant(TenantId("acme")) is True
    assert await store.owner_of(KeyId("k1")) is None
    assert await store.delete_tenant(TenantId("acme")) is False


async def test_keys_need_a_tenant_and_an_id_of_their_own(store: TenantStore) -> None:
    with pytest.raises(NotFound):
        await store.add_key(record("k1"))
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    with pytest.raises(Conflict):
        await store.add_key(record("k1"))
    await store.add_key(record("k2"))
    assert [key.key_id for key in await store.keys(TenantId("acme"))] == ["k1", "k2"]


async def test_a_rotation_adds_a_key_and_bounds_the_lives_of_the_others(store: TenantStore) -> None:
    other = Tenant(TenantId("other"), "Other")
    for tenant in (ACME, other):
        await store.put_tenant(tenant)
    await store.add_key(record("k1"))
    await store.add_key(record("k2", expires_ms=50))
    await store.add_key(record("k9", other))
    await store.rotate_keys(record("k3", expires_ms=900), others_end_wall_ms=100)
    ends = {key.key_id: key.expires_ms for key in await store.keys(ACME.tenant_id)}
    assert ends == {"k1": 100, "k2": 50, "k3": 900}
    assert [key.expires_ms for key in await store.keys(other.tenant_id)] == [None]


async def test_a_rotation_that_fails_changes_nothing(store: TenantStore) -> None:
    with pytest.raises(NotFound):
        await store.rotate_keys(record("k1"), others_end_wall_ms=100)
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    await store.add_key(record("k2"))
    with pytest.raises(Conflict):
        await store.rotate_keys(record("k2"), others_end_wall_ms=100)
    assert [key.expires_ms for key in await store.keys(ACME.tenant_id)] == [None, None]


async def test_revoking_twice_keeps_the_first_time(store: TenantStore) -> None:
    await store.put_tenant(ACME)
    await store.add_key(record("k1"))
    assert await store.revoke_key(KeyId("k1"), at_wall_ms=5) is True
    assert await store.revoke_key(KeyId("k1"), at_wall_ms=9) is True
    assert await store.revoke_key(KeyId("none"), at_wall_ms=9) is False
    owner = await store.owner_of(KeyId("k1"))
    assert owner is not None
    assert owner.key.revoked_ms == 5


async def test_tenants_of_the_first_schema_are_read_on(tmp_path: Path) -> None:
    path = tmp_path / "tenants.sqlite3"
    with sqlite3.connect(path) as db:
        db.executescript(tenants_sqlite._FIRST + "; PRAGMA user_version = 1;")
        db.execute(
            "INSERT INTO tenants VALUES ('full', 'All fields', '[\"a\", \"b\"]', 2.5, 'batch', 1, 2, 'friends', 10, 5)"
        )
        db.execute(
            "INSERT INTO tenants VALUES ('acme', 'Acme', NULL, 1.0, 'interactive', NULL, NULL, NULL, NULL, NULL)"
        )
        db.execute("INSERT INTO keys VALUES ('k1', 'acme', ?, 1, NULL, NULL)", (b"h" * 32,))
    db.close()
    store = SqliteTenants(path)
    of_the_time = Tenant(
        TenantId("full"),
        "All fields",
        models=(ModelName("a"), ModelName("b")),
        weight=2.5,
        tenant_class=TenantClass.BATCH,
        quota=BucketLimits(rate_micro_per_s=1, burst_micro=2),
        trust_group="friends",
        max_context_tokens=10,
        max_output_tokens=5,
    )
    assert await store.tenants() == [ACME, of_the_time]
    assert await store.owner_of(KeyId("k1")) == KeyOwner(record("k1"), ACME)
    await store.close()


async def test_price_versions_are_kept_in_order_and_never_change(store: TenantStore) -> None:
    first = Price("v1", ModelName("a"), TokenRates(1, 2, 3), TokenRates(4, 5, 6), "derived so", frozen_ms=7)
    second = Price("v2", ModelName("a"), TokenRates(1, 2, 4))
    other = Price("v1", ModelName("b"), TokenRates(9, 9, 9))
    for price in (first, second, other):
        await store.freeze_price(price)
    with pytest.raises(Conflict, match="v1"):
        await store.freeze_price(Price("v1", ModelName("a"), TokenRates(8, 8, 8)))
    assert await store.prices() == [first, second, other]


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
    path = tmp_path / "tenants.sqlite3"
    await SqliteTenants(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(SettingsError, match="schema 99"):
        SqliteTenants(path)


async def test_a_key_works_until_it_expires_or_is_revoked_elsewhere(store: TenantStore) -> None:
    clock = VirtualClock(epoch_ms=0)
    key = generate_key(lambda count: bytes(count))
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0, expires_ms=10_000))
    authenticator = Authenticator(store, pepper=PEPPER, clock=clock, cache_ms=1000, stale_ms=60_000)
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


async def test_expiry_is_exact_even_while_the_key_is_remembered(store: TenantStore) -> None:
    clock = VirtualClock()
    key = generate_key(lambda count: bytes(count))
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0, expires_ms=100))
    authenticator = Authenticator(store, pepper=PEPPER, clock=clock, cache_ms=1000, stale_ms=60_000)
    clock.advance(99)
    await authenticator.tenant(f"bearer {key.reveal()}")
    clock.advance(1)
    with pytest.raises(NotAuthenticated):
        await authenticator.tenant(f"bearer {key.reveal()}")


async def test_a_new_key_works_at_once_though_it_was_asked_for_before(store: TenantStore) -> None:
    key = generate_key(lambda count: bytes(count))
    authenticator = Authenticator(store, pepper=PEPPER, clock=VirtualClock(), cache_ms=1000, stale_ms=60_000)
    with pytest.raises(NotAuthenticated):
        await authenticator.tenant(f"Bearer {key.reveal()}")
    await store.put_tenant(ACME)
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0))
    assert await authenticator.tenant(f"Bearer {key.reveal()}") == ACME


@pytest.mark.parametrize(
    ("on_loss", "after_ms", "works"),
    [
        pytest.param(StoreLoss.OPEN, 1500, True, id="open-goes-on"),
        pytest.param(StoreLoss.OPEN, 60_001, False, id="open-but-not-for-ever"),
        pytest.param(StoreLoss.CLOSED, 1500, False, id="closed-stops"),
    ],
)
async def test_while_the_store_is_lost_a_known_key_works_as_its_tenant_says(
    redis_server: Any, on_loss: StoreLoss, after_ms: int, works: bool
) -> None:
    clock = VirtualClock()
    key = generate_key(lambda count: bytes(count))
    store = RedisTenants(RedisLink(redis_server.url))
    await store.put_tenant(Tenant(ACME.tenant_id, "Acme", on_store_loss=on_loss))
    await store.add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0))
    authenticator = Authenticator(store, pepper=PEPPER, clock=clock, cache_ms=1000, stale_ms=60_000)
    await authenticator.tenant(f"Bearer {key.reveal()}")
    redis_server.stop()
    clock.advance(after_ms)
    if works:
        assert (await authenticator.tenant(f"Bearer {key.reveal()}")).tenant_id == "acme"
    else:
        with pytest.raises(StoreUnreachable):
            await authenticator.tenant(f"Bearer {key.reveal()}")
    await store.close()


async def test_a_key_revoked_on_one_gateway_stops_on_another_within_two_seconds(redis_url: str) -> None:
    clock = VirtualClock()
    key = generate_key(lambda count: bytes(count))
    stores = [RedisTenants(RedisLink(redis_url)) for _ in range(2)]
    await stores[0].put_tenant(ACME)
    await stores[0].add_key(KeyRecord(key.key_id, ACME.tenant_id, hash_key(key, PEPPER), 0))
    cache_ms = TimingSettings().key_cache_ms
    assert cache_ms < 2000
    there = Authenticator(stores[1], pepper=PEPPER, clock=clock, cache_ms=cache_ms, stale_ms=60_000)
    await there.tenant(f"Bearer {key.reveal()}")
    await stores[0].revoke_key(key.key_id, at_wall_ms=1)
    clock.advance(cache_ms)
    with pytest.raises(NotAuthenticated):
        await there.tenant(f"Bearer {key.reveal()}")
    for store in stores:
        await store.close()
