"""Both account stores against the pure account, step by step, and what each of them adds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import ModelName, RequestId, TenantId
from ridgeline_gateway.ledger.record import LedgerEntry
from ridgeline_gateway.quota.account import Account, LeaseId
from ridgeline_gateway.quota.limits import Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.redis_store import RedisAccounts, account_scripts
from ridgeline_gateway.quota.sqlite_store import SqliteAccounts
from ridgeline_gateway.quota.steps import Status
from ridgeline_gateway.quota.store import AccountStore
from ridgeline_gateway.redis_link import RedisLink

ACME = TenantId("acme")
TEST_CLOCK = "local now = tonumber(redis.call('GET', 'test-clock'))\n"
LEASE_MS = 2000
ENTRY = LedgerEntry(RequestId("r"), ModelName("m"), "v", 3, 1, 2, 0, 0, 1, "ok")


class Ticking:
    """A store on a clock that the test moves."""

    def __init__(self, store: AccountStore, clock: VirtualClock) -> None:
        self.store = store
        self.clock = clock

    async def at(self, now_us: int) -> None:
        self.clock.now_ms = now_us / 1000
        if isinstance(self.store, RedisAccounts):
            await self.store.link.command("SET", "test-clock", now_us)


def open_store(kind: str, folder: Path, redis_url: str) -> Ticking:
    clock = VirtualClock()
    if kind == "sqlite":
        return Ticking(SqliteAccounts(folder / "quota.sqlite3", clock=clock, lease_ms=LEASE_MS), clock)
    scripts = account_scripts(TEST_CLOCK)
    return Ticking(RedisAccounts(RedisLink(redis_url), scripts=scripts, lease_ms=LEASE_MS), clock)


@pytest.fixture(params=["sqlite", "redis"])
async def ticking(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> AsyncIterator[Ticking]:
    opened = open_store(request.param, tmp_path, redis_url)
    await opened.at(0)
    yield opened
    await opened.store.close()


_BUCKETS = st.one_of(
    st.none(),
    st.builds(BucketLimits, st.integers(1, 100), st.integers(1, 200)),
    st.builds(BucketLimits, st.integers(1, 2**53 - 1), st.integers(1, 2**53 - 1)),
)
_LIMITS = st.builds(
    QuotaLimits,
    tokens=_BUCKETS,
    kv=_BUCKETS,
    max_concurrent=st.one_of(st.none(), st.integers(1, 3)),
    debt_cap_micro=st.integers(0, 50),
)
_AMOUNTS = st.builds(Amounts, st.integers(0, 150), st.integers(0, 150))
_STEP = st.tuples(
    st.sampled_from(
        [
            "standing",
            "reserve",
            "reserve",
            "renew",
            "settle",
            "restore",
            "renew again",
            "settle again",
            "new life",
        ]
    ),
    st.sampled_from(["a", "b", "c", "d", "e"]),
    _AMOUNTS,
    st.one_of(st.integers(0, 3_000_000), st.integers(0, 10**12)),
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(choices=st.lists(_LIMITS, min_size=1, max_size=3), steps=st.lists(_STEP, max_size=30), data=st.data())
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_store_answers_every_step_as_the_pure_account_does(
    kind: str,
    tmp_path: Path,
    redis_url: str,
    choices: list[QuotaLimits],
    steps: list[tuple[str, str, Amounts, int]],
    data: st.DataObject,
) -> None:
    picks = [data.draw(st.sampled_from(choices)) for _ in steps]

    async def run() -> None:
        ticking = open_store(kind, tmp_path, redis_url)
        tenant = TenantId(f"t{id(steps)}-{len(list(tmp_path.iterdir()))}")
        (tmp_path / f"mark-{len(list(tmp_path.iterdir()))}").touch()
        oracle, now_us, life = Account(), 0, 0
        turns = dict.fromkeys("abcde", 0)
        if isinstance(ticking.store, RedisAccounts):
            await ticking.store.announce("gateway")
            ticking.store.link.server = "life 0"
        for (step, name, amounts, elapsed_us), limits in zip(steps, picks, strict=True):
            now_us += elapsed_us
            await ticking.at(now_us)
            # How much longer than promised a store remembers a settlement is its own affair: ids do not come again.
            for old in [
                key for key, value in oracle.settled.items() if now_us - value.settled_us >= 600_000_000
            ]:
                del oracle.settled[old]
                turns[old[0]] += 1
            lease, store = LeaseId(f"{name}{turns[name]}"), ticking.store
            again, run = step.endswith("again"), ""
            if isinstance(store, RedisAccounts):
                life += step == "new life"
                run = store.link.server = f"life {life}"
            if step in ("standing", "new life"):
                expected = oracle.standing(limits, now_us=now_us, run=run)
                found = await store.standing(tenant, limits)
            elif step == "restore":
                seen_us = max(0, now_us - amounts.kv_micro * 20_000)
                expected = oracle.restore(amounts, seen_us, limits, now_us=now_us, run=run)
                found = await store.restore(tenant, limits, amounts, seen_us=seen_us)
            elif step == "reserve":
                expected = oracle.reserve(
                    lease, amounts, limits, lease_us=LEASE_MS * 1000, now_us=now_us, run=run
                )
                found = await store.reserve(tenant, limits, lease, amounts)
            elif step.startswith("renew"):
                expected = oracle.renew(
                    lease, amounts, limits, lease_us=LEASE_MS * 1000, now_us=now_us, run=run, recovered=again
                )
                found = await store.renew(tenant, limits, lease, amounts, recovered=again)
            else:
                expected = oracle.settle(lease, amounts, limits, now_us=now_us, run=run, recovered=again)
                found = await store.settle(tenant, limits, lease, amounts, ENTRY.to_json(), recovered=again)
            oracle.check()
            assert found == expected, (step, name, amounts, limits)
        await store_ledger_agrees(ticking.store, tenant, steps)
        await ticking.store.close()

    asyncio.run(run())


async def store_ledger_agrees(store: AccountStore, tenant: TenantId, steps: list[Any]) -> None:
    records = await store.records(tenant, since_ms=0, until_ms=2**52, after=None, most=1000)
    assert len(records) <= sum(step.startswith("settle") for step, *_ in steps)
    for record in records:
        assert record.entry == ENTRY
        assert sum(amount for _, amount in record.grants) == record.reserved_micro
        assert record.refunded_micro <= max(0, record.reserved_micro - record.charged_micro)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_recovered_raise_gives_back_no_more_than_the_bucket_has_room_for(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    limits, ticking = QuotaLimits(tokens=BucketLimits(1, 10)), open_store(kind, tmp_path, redis_url)
    store, oracle, lease = ticking.store, Account(), LeaseId("a")
    # 1,001 us is no whole number of milliseconds: neither store may lose the last of them.
    await ticking.at(1_001)
    expected = oracle.reserve(lease, Amounts(0), limits, lease_us=LEASE_MS * 1000, now_us=1_001)
    assert await store.reserve(ACME, limits, lease, Amounts(0)) == expected
    expected = oracle.renew(lease, Amounts(4), limits, lease_us=LEASE_MS * 1000, now_us=1_001, recovered=True)
    oracle.check()
    assert await store.renew(ACME, limits, lease, Amounts(4), recovered=True) == expected
    # The bucket is full: of the 4 micro-tokens nothing can be given back.
    expected = oracle.settle(lease, Amounts(1), limits, now_us=1_001)
    found = await store.settle(ACME, limits, lease, Amounts(1), ENTRY.to_json())
    assert found == expected
    assert (found.refunded, found.level.tokens_micro) == (Amounts(0), 10)
    await store.close()


async def test_a_ledger_is_read_in_pieces_and_by_time(ticking: Ticking) -> None:
    limits = QuotaLimits(tokens=BucketLimits(1, 1000))
    for index in range(5):
        await ticking.at(1_000_000 * (index + 1))
        await ticking.store.reserve(ACME, limits, LeaseId(f"l{index}"), Amounts(10))
        await ticking.store.settle(ACME, limits, LeaseId(f"l{index}"), Amounts(index), ENTRY.to_json())
        # Repeated: charged once, written once.
        again = await ticking.store.settle(ACME, limits, LeaseId(f"l{index}"), Amounts(9), ENTRY.to_json())
        assert (again.status, again.charged.tokens_micro) == (Status.SETTLED, index)
    whole = await ticking.store.records(ACME, since_ms=0, until_ms=2**52, after=None, most=100)
    assert [record.charged_micro for record in whole] == [0, 1, 2, 3, 4]
    first = await ticking.store.records(ACME, since_ms=0, until_ms=2**52, after=None, most=2)
    rest = await ticking.store.records(ACME, since_ms=0, until_ms=2**52, after=first[-1].position, most=100)
    assert first + rest == whole
    assert (
        await ticking.store.records(TenantId("other"), since_ms=0, until_ms=2**52, after=None, most=9) == []
    )


async def test_tenants_have_accounts_of_their_own(ticking: Ticking) -> None:
    limits = QuotaLimits(tokens=BucketLimits(1, 10))
    await ticking.store.reserve(ACME, limits, LeaseId("same"), Amounts(10))
    other = await ticking.store.reserve(TenantId("other"), limits, LeaseId("same"), Amounts(10))
    assert other.status is Status.DONE


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_what_was_reserved_is_known_after_a_restart_of_the_gateway(
    kind: str, tmp_path: Path, redis_url: str
) -> None:
    limits = QuotaLimits(tokens=BucketLimits(1, 100))
    first = open_store(kind, tmp_path, redis_url)
    await first.at(0)
    await first.store.reserve(ACME, limits, LeaseId("a"), Amounts(60))
    second = open_store(kind, tmp_path, redis_url)
    assert (await second.store.standing(ACME, limits)).level.tokens_micro == 40
    settled = await second.store.settle(ACME, limits, LeaseId("a"), Amounts(5), ENTRY.to_json())
    assert (settled.refunded.tokens_micro, settled.level.tokens_micro) == (55, 95)
    for opened in (first, second):
        await opened.store.close()


async def test_two_gateways_on_one_store_never_admit_more_than_it_holds(
    tmp_path: Path, redis_url: str
) -> None:
    limits = QuotaLimits(tokens=BucketLimits(1, 100))
    for kind in ("sqlite", "redis"):
        stores = [open_store(kind, tmp_path, redis_url) for _ in range(2)]
        await stores[0].at(0)
        asked = [
            stores[index % 2].store.reserve(ACME, limits, LeaseId(f"{kind}{index}"), Amounts(7))
            for index in range(40)
        ]
        results = await asyncio.gather(*asked)
        assert sum(result.status is Status.DONE for result in results) == 14
        for opened in stores:
            await opened.store.close()
