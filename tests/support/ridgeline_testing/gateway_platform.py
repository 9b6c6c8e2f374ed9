"""A gateway in this process over fake workers and a fake router, with a tenant and its key."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import GatewayId, Incarnation, TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_gateway.connection import BoundedConnection
from ridgeline_gateway.gateway import Gateway, GatewayStores
from ridgeline_gateway.quota.sqlite_store import SqliteAccounts
from ridgeline_gateway.quota.steps import Standing
from ridgeline_gateway.settings import GatewaySettings, Identity, Secrets, StoreSettings, TimingSettings
from ridgeline_gateway.tenants import KeyRecord, Tenant
from ridgeline_gateway.tenants_sqlite import SqliteTenants

from ridgeline_testing.fake_model import FakeModelFiles
from ridgeline_testing.fake_router import FakeRouter
from ridgeline_testing.fake_worker import CAPABILITIES, FakeWorker

PEPPER = b"a pepper for the tests"
ADMIN_KEY = "an admin key for the tests"


@dataclass(slots=True)
class GatewayPlatform:
    """A gateway over fakes, and a tenant's key."""

    gateway: Gateway
    router: FakeRouter
    workers: list[FakeWorker]
    key: str
    tenant: Tenant
    stores: GatewayStores
    client: httpx.AsyncClient
    admin: httpx.AsyncClient

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    async def put_tenant(self, **changes: Any) -> None:
        self.tenant = replace(self.tenant, **changes)
        await self.stores.tenants.put_tenant(self.tenant)
        self.gateway.authenticator.forget()

    async def settled(self) -> None:
        """Waits until nothing runs in the background."""
        await self.gateway.background.finish(limit_ms=5000)

    async def nothing_reserved(self) -> None:
        """Waits until the tenant holds no reservation."""
        async with asyncio.timeout(10):
            while await self.reserved_micro():  # noqa: ASYNC110  # a bucket has no event to wait on
                await asyncio.sleep(0.005)

    async def reserved_micro(self) -> int:
        return (await self.standing()).reserved_micro

    async def standing(self) -> Standing:
        return await self.gateway.quota.standing(self.tenant)


TIMING = TimingSettings(
    connect_wait_ms=1000, retry_wait_ms=3000, retry_poll_ms=20, settle_wait_ms=2000, reconnect_last_ms=100
)


def _settings(folder: Path, *, router_address: str, timing: TimingSettings) -> GatewaySettings:
    return GatewaySettings(
        identity=Identity(GatewayId("gateway-1"), Incarnation("life-1"), "0.1.0"),
        router_address=router_address,
        store=StoreSettings(folder),
        secrets=Secrets(PEPPER, ADMIN_KEY),
        timing=timing,
    )


def _stores(settings: GatewaySettings) -> GatewayStores:
    accounts = SqliteAccounts(settings.store.quota_file, clock=SystemClock())
    return GatewayStores(SqliteTenants(settings.store.tenants_file), accounts)


@asynccontextmanager
async def bare_gateway(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway without router, workers and tenants: what the admin port needs."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _settings(folder, router_address="127.0.0.1:1", timing=TIMING)
    gateway = Gateway(settings, _stores(settings), clock=SystemClock())
    try:
        yield gateway
    finally:
        await gateway.close()


@asynccontextmanager
async def gateway_platform(
    files: FakeModelFiles,
    folder: Path,
    *,
    workers: int = 1,
    timing: TimingSettings = TIMING,
    capabilities: Capabilities = CAPABILITIES,
) -> AsyncIterator[GatewayPlatform]:
    async with AsyncExitStack() as stack:
        fakes = [FakeWorker(f"worker-{index}", files, capabilities) for index in range(workers)]
        router = FakeRouter()
        for fake in (*fakes, router):
            await fake.start()
            stack.push_async_callback(fake.stop)
        router.tell(*(fake.info() for fake in fakes))
        settings = _settings(folder, router_address=router.address, timing=timing)
        stores = _stores(settings)
        gateway = Gateway(settings, stores, clock=SystemClock())
        stack.push_async_callback(gateway.close)
        tenant = Tenant(TenantId("acme"), "Acme")
        await stores.tenants.put_tenant(tenant)
        key = generate_key(lambda count: bytes(range(count)))
        if not await stores.tenants.keys(tenant.tenant_id):
            record = KeyRecord(key.key_id, tenant.tenant_id, hash_key(key, PEPPER), created_ms=0)
            await stores.tenants.add_key(record)
        gateway.start()
        for fake in fakes:
            while not any(link.worker_id == fake.worker_id for link in gateway.links.serving(files.variant)):
                await gateway.links.change()
        if fakes:
            # What a readiness probe waits for, without the probe.
            await gateway.models.load_all()
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.app),
            base_url="http://gateway",
            headers={"authorization": f"Bearer {key.reveal()}"},
        )
        admin = httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.admin_app),
            base_url="http://admin",
            headers={"authorization": f"Bearer {ADMIN_KEY}"},
        )
        await stack.enter_async_context(client)
        await stack.enter_async_context(admin)
        yield GatewayPlatform(gateway, router, fakes, key.reveal(), tenant, stores, client, admin)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    server = _QuietServer(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            lifespan="off",
            log_config=None,
            ws="none",
            loop="asyncio",
            http=BoundedConnection,
        )
    )
    task = asyncio.create_task(server.serve())
    await server.listening.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
