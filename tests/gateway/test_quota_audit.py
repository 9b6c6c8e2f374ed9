"""Eight gateway processes over one Redis, two hundred clients that cancel, time out and retry: the books are exact."""

import asyncio
import contextlib
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import RateLimited
from ridgeline_contracts.ids import ModelName, RequestId, TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_gateway.ledger.record import LedgerEntry, LedgerRecord
from ridgeline_gateway.prices.price import Price, TokenRates
from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.backlog import Backlog
from ridgeline_gateway.quota.desk import QuotaDesk
from ridgeline_gateway.quota.limits import MICRO, Amounts, BucketLimits, QuotaLimits
from ridgeline_gateway.quota.redis_store import RedisAccounts
from ridgeline_gateway.quota.steps import StepResult
from ridgeline_gateway.redis_link import RedisLink, StoreUnreachable
from ridgeline_gateway.tenants import KeyRecord, Tenant
from ridgeline_gateway.tenants_redis import RedisTenants
from ridgeline_testing.fake_model import MODEL, FakeModelFiles
from ridgeline_testing.fake_router import FakeRouter
from ridgeline_testing.fake_worker import FakeWorker
from ridgeline_testing.quota_audit import audit, over_micro

GATEWAYS, CLIENTS, SECONDS = 8, 200, 10.0
PEPPER = "a pepper for the audit, long enough"
PRICE = Price("v1", ModelName(MODEL), TokenRates(MICRO, 300_001, 3_700_003))
TENANT = Tenant(
    TenantId("acme"),
    "Acme",
    quota=BucketLimits(rate_micro_per_s=4000 * MICRO, burst_micro=12_000 * MICRO),
    debt_cap_micro=200 * MICRO,
)
KEY = generate_key(lambda count: bytes(range(count)))


async def all_records(url: str) -> list[LedgerRecord]:
    store = RedisAccounts(RedisLink(url))
    found: list[LedgerRecord] = []
    while True:
        after = found[-1].position if found else None
        piece = await store.records(TENANT.tenant_id, since_ms=0, until_ms=2**52, after=after, most=1000)
        found += piece
        if len(piece) < 1000:
            await store.close()
            return found


async def write_tenant(url: str) -> None:
    tenants = RedisTenants(RedisLink(url))
    await tenants.put_tenant(TENANT)
    if await tenants.owner_of(KEY.key_id) is None:
        digest = hash_key(KEY, PEPPER.encode())
        await tenants.add_key(KeyRecord(KEY.key_id, TENANT.tenant_id, digest, 0))
        await tenants.freeze_price(PRICE)
    await tenants.close()


@dataclass
class Platform:
    urls: list[str]
    worker: FakeWorker
    redis: Any
    generator: random.Random

    async def standing(self) -> StepResult:
        store = RedisAccounts(RedisLink(self.redis.url))
        try:
            while True:
                # A machine that is busy with eight gateways may take longer than a gateway would wait.
                with contextlib.suppress(StoreUnreachable):
                    return await store.standing(TENANT.tenant_id, TENANT.limits)
        finally:
            await store.close()

    async def redis_command(self, *words: str) -> None:
        link = RedisLink(self.redis.url)
        await link.command(*words)
        await link.close()

    async def clients(self) -> dict[int, int]:
        """Runs them all to their end; returns how often each status came (0: no answer)."""
        statuses: dict[int, int] = {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
        headers = {"authorization": f"Bearer {KEY.reveal()}"}
        loop = asyncio.get_running_loop()
        ends = loop.time() + SECONDS
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=30) as client:

            async def one() -> None:
                while loop.time() < ends:
                    status = await self._ask(client)
                    statuses[status] = statuses.get(status, 0) + 1
                    await asyncio.sleep(self.generator.uniform(0.5, 3.0))

            await asyncio.gather(*(one() for _ in range(CLIENTS)))
        return statuses

    async def _ask(self, client: httpx.AsyncClient) -> int:
        draw = self.generator
        body: dict[str, Any] = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "hello " * draw.randint(1, 30)}],
            "stream": draw.random() < 0.6,
        }
        if draw.random() < 0.6:
            body["max_tokens"] = draw.randint(1, 200)
        patience = draw.choice([0.05, 0.2, 0.6, 20.0, 20.0])
        try:
            async with (
                asyncio.timeout(patience),
                client.stream("POST", draw.choice(self.urls) + "/v1/chat/completions", json=body) as reply,
            ):
                leave_at = draw.choice([None, None, draw.randint(1, 5)])
                pieces = 0
                async for _ in reply.aiter_raw():
                    pieces += 1
                    if pieces == leave_at:
                        break
                return reply.status_code
        except (TimeoutError, httpx.HTTPError):
            return 0


@asynccontextmanager
async def eight_gateways(files: FakeModelFiles, folder: Path, redis: Any) -> AsyncIterator[Platform]:
    generator = random.Random(7)
    worker, router = FakeWorker("worker-0", files), FakeRouter()

    def reply_for(submit: Any) -> Any:
        length = min(submit.sampling.max_tokens, generator.choice([1, 5, 30, 150, 300]))
        cached = generator.choice([0, 0, 4])
        return worker.made(
            [[40] * length], step_tokens=generator.choice([1, 7, 40]), cached_tokens=cached, step_ms=15
        )

    worker.reply_for = reply_for
    for fake in (worker, router):
        await fake.start()
    router.tell(worker.info())
    await write_tenant(redis.url)
    secrets = {"admin": "an admin key for the audit", "pepper": PEPPER}
    for name, text in secrets.items():
        path = folder / name
        path.write_text(text)
        path.chmod(0o600)
    environment = {**os.environ, "RIDGELINE_REDIS_URL": redis.url}
    processes = []
    for index in range(GATEWAYS):
        flags = [
            "--port",
            "0",
            "--admin-port",
            "0",
            "--router",
            router.address,
            "--gateway-id",
            f"gateway-{index}",
        ]
        flags += ["--data-dir", str(folder / f"data-{index}"), "--ready-file", str(folder / f"ready-{index}")]
        flags += ["--admin-key-file", str(folder / "admin"), "--pepper-file", str(folder / "pepper")]
        processes.append(
            await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ridgeline_gateway", *flags, "--log-level", "error", env=environment
            )
        )
    try:
        yield Platform(await ready_urls(folder), worker, redis, generator)
    finally:
        for process in processes:
            process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))
        for fake in (router, worker):
            await fake.stop()


async def ready_urls(folder: Path) -> list[str]:
    urls = []
    async with asyncio.timeout(90), httpx.AsyncClient() as client:
        for index in range(GATEWAYS):
            path = folder / f"ready-{index}"
            while not path.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            held = json.loads(path.read_text())
            while (await client.get(held["admin_url"] + "/readyz")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            urls.append(held["base_url"])
    return urls


async def nothing_reserved(platform: Platform) -> None:
    async with asyncio.timeout(60):
        while (await platform.standing()).open_leases:  # noqa: ASYNC110  # in other processes
            await asyncio.sleep(0.2)


async def restart(platform: Platform, how: str) -> int:
    """In the middle of the run. Returns what was reserved when Redis died."""
    await asyncio.sleep(SECONDS / 2 - 2)
    if how == "a copy two seconds old":
        await platform.redis_command("SAVE")
    await asyncio.sleep(2)
    if how == "as it was":
        await platform.redis_command("SAVE")
    in_flight = (await platform.standing()).held.tokens_micro
    platform.redis.stop()
    await asyncio.sleep(1)
    platform.redis.start()
    await write_tenant(platform.redis.url)
    return in_flight


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_charges_are_counts_times_price_and_the_bound_holds(
    model_files: FakeModelFiles, tmp_path: Path, redis_server: Any
) -> None:
    async with eight_gateways(model_files, tmp_path, redis_server) as platform:
        for how in ("no restart", "as it was", "a copy two seconds old", "empty"):
            await platform.redis_command("FLUSHALL")
            for dump in tmp_path.glob("*.rdb"):
                dump.unlink()
            await write_tenant(redis_server.url)
            await asyncio.sleep(1.5)
            platform.worker.counted.clear()
            task = None if how == "no restart" else asyncio.create_task(restart(platform, how))
            statuses = await platform.clients()
            in_flight = 0 if task is None else await task
            await nothing_reserved(platform)
            await asyncio.sleep(2.5)
            found = audit(await all_records(redis_server.url), platform.worker.counted, PRICE, TENANT.limits)
            standing = await platform.standing()
            sys.stderr.write(
                f"{how}: {found.records} records, {found.charged_micro / MICRO:.0f} charged, over-admitted "
                f"{found.over_micro / MICRO:.1f} of {in_flight / MICRO:.0f} in flight, {len(found.wrong)} wrong, "
                f"statuses {dict(sorted(statuses.items()))}\n"
            )
            assert found.wrong == []
            assert standing.held == Amounts()
            assert found.over_micro <= in_flight
            assert found.records > 30
            assert statuses[200] > 10
            assert statuses.get(500, 0) == 0


class FakeTornAccounts(RedisAccounts):
    """Looks, and then takes: what a store must not do."""

    async def reserve(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, wanted: Amounts
    ) -> StepResult:
        seen = await self.standing(tenant_id, limits)
        if seen.level.tokens_micro < wanted.tokens_micro:
            return await super().reserve(tenant_id, limits, lease_id, wanted)
        return await self.renew(tenant_id, limits, lease_id, wanted)


@pytest.mark.parametrize(("store", "is_exact"), [(RedisAccounts, True), (FakeTornAccounts, False)])
async def test_the_audit_finds_a_store_whose_steps_are_not_atomic(
    redis_url: str, tmp_path: Path, store: type[RedisAccounts], is_exact: bool
) -> None:
    backlog = Backlog(tmp_path / "owed.jsonl")
    desks = [
        QuotaDesk(store(RedisLink(redis_url)), backlog, clock=SystemClock(), gateway_id=str(n))
        for n in range(8)
    ]
    cost = 1000

    async def one(index: int) -> None:
        desk, lease = desks[index % 8], f"lease-{index}"
        try:
            grant = await desk.reserve(TENANT, LeaseId(lease), Amounts(cost * MICRO))
        except RateLimited:
            return
        entry = LedgerEntry(RequestId(lease), ModelName(MODEL), "v1", cost, 0, 0, 0, 0, 1, "ok")
        await desk.settle(grant, Amounts(cost * MICRO), entry.to_json())

    await asyncio.gather(*(one(index) for index in range(200)))
    records = await all_records(redis_url)
    assert (over_micro(records, TENANT.limits) == 0) is is_exact
    for desk in desks:
        await desk.close()
