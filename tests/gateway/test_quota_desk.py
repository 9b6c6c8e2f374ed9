"""The gateway's side of quota over a real Redis: outages, restarts, and that nothing is lost or charged twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import InvalidRequest, InvariantError, RateLimited, SettingsError
from ridgeline_contracts.ids import ModelName, RequestId, TenantId
from ridgeline_gateway.ledger.record import LedgerEntry
from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.backlog import Backlog
from ridgeline_gateway.quota.desk import QuotaDesk
from ridgeline_gateway.quota.limits import Amounts, BucketLimits
from ridgeline_gateway.quota.redis_store import RedisAccounts
from ridgeline_gateway.redis_link import RedisLink, StoreUnreachable
from ridgeline_gateway.tenants import StoreLoss, Tenant

ENTRY = LedgerEntry(RequestId("r"), ModelName("m"), "v", 3, 1, 2, 0, 0, 1, "ok").to_json()
ACME = Tenant(TenantId("acme"), "Acme", quota=BucketLimits(rate_micro_per_s=1, burst_micro=100))


class Office:
    """Desks of several gateways over one Redis."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.folder = folder
        self.server = server
        self.clock = VirtualClock()
        self.desks = [self.desk(server.url, f"gateway-{index}") for index in range(2)]

    def desk(self, url: str, gateway_id: str) -> QuotaDesk:
        backlog = Backlog(self.folder / f"{gateway_id}.jsonl")
        return QuotaDesk(RedisAccounts(RedisLink(url)), backlog, clock=self.clock, gateway_id=gateway_id)

    async def tick(self) -> None:
        for desk in self.desks:
            await desk.tick()

    async def charged(self, tenant: Tenant = ACME) -> list[int]:
        store = RedisAccounts(RedisLink(self.server.url))
        records = await store.records(tenant.tenant_id, since_ms=0, until_ms=2**52, after=None, most=1000)
        await store.close()
        return [record.charged_micro for record in records]


@pytest.fixture
async def office(redis_server: Any, tmp_path: Path) -> AsyncIterator[Office]:
    made = Office(redis_server, tmp_path)
    yield made
    for desk in made.desks:
        await desk.close()


def lease(name: str) -> LeaseId:
    return LeaseId(name)


async def test_what_cannot_fit_is_refused_with_the_true_wait(office: Office) -> None:
    desk = office.desks[0]
    grant = await desk.reserve(ACME, lease("a"), Amounts(90))
    with pytest.raises(RateLimited) as refused:
        await office.desks[1].reserve(ACME, lease("b"), Amounts(60))
    assert refused.value.retry_after_ms is not None
    assert 48_000 < refused.value.retry_after_ms <= 50_000
    with pytest.raises(InvalidRequest):
        await desk.reserve(ACME, lease("c"), Amounts(101))
    receipt = await desk.settle(grant, Amounts(30), ENTRY)
    assert (receipt.charged_micro, receipt.refunded_micro, receipt.reserved_micro) == (30, 60, 90)
    with pytest.raises(InvariantError):
        await desk.settle(grant, Amounts(30), ENTRY)


async def test_a_top_up_that_bucket_and_debt_cap_do_not_hold_is_refused(office: Office) -> None:
    owing = Tenant(TenantId("owing"), "Owing", quota=ACME.quota, debt_cap_micro=20)
    desk = office.desks[0]
    grant = await desk.reserve(owing, lease("a"), Amounts(100))
    await desk.raise_to(grant, 115)
    assert grant.held.tokens_micro == 115
    with pytest.raises(RateLimited, match="debt cap"):
        await desk.raise_to(grant, 130)
    assert grant.held.tokens_micro == 115
    await desk.settle(grant, Amounts(115), ENTRY)
    with pytest.raises(RateLimited):
        await desk.reserve(owing, lease("b"), Amounts(1))


async def test_while_redis_is_lost_a_tenant_gets_its_share_and_is_charged_when_it_is_back(
    office: Office,
) -> None:
    desk = office.desks[0]
    before = await desk.reserve(ACME, lease("before"), Amounts(20))
    # They learn of each other.
    for _ in range(2):
        await office.tick()
    office.server.stop()
    # 80 were left, two gateways share them.
    during = await desk.reserve(ACME, lease("during"), Amounts(40))
    assert (desk.store_lost, desk.admitted_alone) == (True, 1)
    with pytest.raises(RateLimited):
        await desk.reserve(ACME, lease("too much"), Amounts(5))
    await desk.settle(before, Amounts(7), ENTRY)
    await desk.settle(during, Amounts(11), ENTRY)
    assert desk.unsettled == 2
    office.server.start()
    await desk.tick()
    assert (desk.store_lost, desk.unsettled) == (False, 0)
    assert sorted(await office.charged()) == [7, 11]
    await desk.tick()
    assert sorted(await office.charged()) == [7, 11]


async def test_a_tenant_that_fails_closed_is_refused_while_redis_is_lost(office: Office) -> None:
    closed = Tenant(TenantId("closed"), "Closed", quota=ACME.quota, on_store_loss=StoreLoss.CLOSED)
    office.server.stop()
    with pytest.raises(StoreUnreachable) as refused:
        await office.desks[0].reserve(closed, lease("a"), Amounts(1))
    assert (refused.value.http_status, office.desks[0].refused_alone) == (503, 1)
    office.server.start()
    await office.desks[0].reserve(closed, lease("a"), Amounts(1))


async def test_a_redis_that_restarts_empty_is_told_what_runs_and_what_was_just_settled(
    office: Office,
) -> None:
    desk = office.desks[0]
    settled = await desk.reserve(ACME, lease("settled"), Amounts(30))
    await desk.settle(settled, Amounts(25), ENTRY)
    runs = await desk.reserve(ACME, lease("runs"), Amounts(40))
    office.server.stop()
    office.server.start()
    await desk.tick()
    await desk.tick()
    standing = await desk.standing(ACME)
    assert (standing.reserved_micro, standing.remaining_micro) == (40, 100 - 25 - 40)
    await desk.settle(runs, Amounts(12), ENTRY)
    assert sorted(await office.charged()) == [12, 25]
    assert (await desk.standing(ACME)).reserved_micro == 0


async def test_leases_of_live_requests_are_renewed_and_others_run_out(redis_url: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    store = RedisAccounts(RedisLink(redis_url), lease_ms=600)
    desk = QuotaDesk(store, Backlog(tmp_path / "owed"), clock=clock, gateway_id="one")
    await desk.reserve(ACME, lease("live"), Amounts(10))
    # A gateway that died: it reserved and never comes back.
    await store.reserve(ACME.tenant_id, ACME.limits, lease("dead"), Amounts(10))
    for _ in range(4):
        await asyncio.sleep(0.2)
        clock.advance(11_000)
        await desk.tick()
    assert (await desk.standing(ACME)).reserved_micro == 10
    await desk.close()


async def test_what_a_gateway_could_not_settle_before_its_end_it_settles_after_its_next_start(
    office: Office,
) -> None:
    desk = office.desks[0]
    grant = await desk.reserve(ACME, lease("a"), Amounts(30))
    office.server.stop()
    await desk.settle(grant, Amounts(9), ENTRY)
    await desk.close()
    path = office.folder / "gateway-0.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    office.server.start()
    again = office.desks[0] = office.desk(office.server.url, "gateway-0")
    assert again.unsettled == 1
    await again.tick()
    assert await office.charged() == [9]
    await again.close()
    assert not path.exists()


def test_a_backlog_that_cannot_be_read_is_not_thrown_away(tmp_path: Path) -> None:
    path = tmp_path / "owed.jsonl"
    path.write_text("half a li")
    with pytest.raises(SettingsError, match="settle by hand"):
        Backlog(path).read()
    assert path.exists()
