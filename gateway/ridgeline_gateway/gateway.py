"""A whole gateway, put together: what runs behind the two applications."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from fastapi import FastAPI
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.proto import router_pb2

from ridgeline_gateway.admin_app import create_admin_app
from ridgeline_gateway.admin_parts import AdminParts
from ridgeline_gateway.admission import Admission
from ridgeline_gateway.app import create_app
from ridgeline_gateway.app_parts import AppParts
from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.background import Background
from ridgeline_gateway.directory import WorkerDirectory
from ridgeline_gateway.generation import Fleet
from ridgeline_gateway.health import Health
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.prices.book import PriceBook
from ridgeline_gateway.quota.backlog import Backlog
from ridgeline_gateway.quota.desk import QuotaDesk
from ridgeline_gateway.quota.estimate import KvEstimator, OutputEstimator
from ridgeline_gateway.quota.store import AccountStore
from ridgeline_gateway.router_client import RouterClient
from ridgeline_gateway.run import Learning
from ridgeline_gateway.served_models import ServedModels
from ridgeline_gateway.settings import GatewaySettings
from ridgeline_gateway.tenants import TenantStore
from ridgeline_gateway.text_models import TextModels
from ridgeline_gateway.tokenizer_files import TokenizerFileCache
from ridgeline_gateway.worker_links import WorkerLinks


@dataclass(frozen=True, slots=True)
class GatewayStores:
    """State that may be shared by several gateways."""

    tenants: TenantStore
    accounts: AccountStore


class Gateway:
    """Make it inside a running event loop, `start` it, serve `app` and `admin_app`, `close` it.

    Takes over the stores: `close` ends them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        stores: GatewayStores,
        *,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._clock = clock
        self._draining = False
        self._watches: list[asyncio.Task[None]] = []
        timing = settings.timing
        self.background = Background()
        self.router = RouterClient(settings.router_address, timing=timing, background=self.background)
        self.directory = WorkerDirectory()
        self.links = WorkerLinks(identity=settings.identity, timing=timing)
        self.metrics = _metrics(self)
        self.authenticator = Authenticator(
            stores.tenants,
            pepper=settings.secrets.pepper,
            clock=clock,
            cache_ms=timing.key_cache_ms,
            stale_ms=timing.key_stale_ms,
        )
        self.texts = TextModels(
            TokenizerFileCache(settings.store.tokenizers_dir),
            random_bytes=random_bytes,
            strftime_now=lambda form: datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).strftime(form),
        )
        self.models = models = ServedModels(self.directory, self.links, self.texts)
        fleet = Fleet(
            router=self.router,
            links=self.links,
            directory=self.directory,
            clock=clock,
            timing=timing,
            limits=settings.limits,
            background=self.background,
            random_bytes=random_bytes,
        )
        self.quota = QuotaDesk(
            stores.accounts,
            Backlog(settings.store.backlog_file),
            clock=clock,
            gateway_id=settings.identity.gateway_id,
        )
        self.prices = PriceBook(stores.tenants, clock=clock, cache_ms=timing.key_cache_ms)
        admission = Admission(
            fleet,
            models,
            self.quota,
            prices=self.prices,
            learning=Learning(OutputEstimator(), KvEstimator()),
            pepper=settings.secrets.pepper,
        )
        self.app: FastAPI = create_app(
            AppParts(
                authenticator=self.authenticator,
                tenants=stores.tenants,
                accounts=stores.accounts,
                models=models,
                admission=admission,
                metrics=self.metrics,
                clock=clock,
                limits=settings.limits,
                timing=timing,
                random_bytes=random_bytes,
                closing=lambda: self._draining,
            )
        )
        self.admin_app: FastAPI = create_admin_app(
            AdminParts(
                tenants=stores.tenants,
                quota=self.quota,
                prices=self.prices,
                accounts=stores.accounts,
                authenticator=self.authenticator,
                metrics=self.metrics,
                health=self.health,
                secrets=settings.secrets,
                clock=clock,
                random_bytes=random_bytes,
            )
        )

    def start(self) -> None:
        """Begins to follow the router."""
        self._watches = [
            asyncio.create_task(self.router.watch(self._on_workers), name="router-watch"),
            asyncio.create_task(self.models.keep_loaded(), name="tokenizers"),
            asyncio.create_task(self.quota.keep(), name="quota"),
        ]

    def drain(self) -> None:
        """From now on not ready, and every response asks its client to connect elsewhere."""
        self._draining = True

    def health(self) -> Health:
        return Health(
            router_reachable=self.router.reachable,
            ready_workers=self.directory.ready_workers,
            connected_workers=self.links.connected_workers,
            loaded_tokenizers=self.texts.loaded,
            draining=self._draining,
        )

    async def close(self) -> None:
        """Settles what is open, ends sessions and stores."""
        await self.background.finish(limit_ms=self._settings.timing.settle_wait_ms)
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self.links.close()
        await self.router.close()
        await self.quota.close()
        await self._stores.tenants.close()

    def _on_workers(self, workers: router_pb2.WorkerSet) -> None:
        self.directory.update(workers, wall_ms=self._clock.wall_ms())
        self.links.update(self.directory.workers)


def _metrics(gateway: Gateway) -> GatewayMetrics:
    metrics = GatewayMetrics()
    metrics.watch(
        "ready", "1 when this gateway should get requests.", lambda: gateway.health().problem is None
    )
    metrics.watch("connected_workers", "Workers with a session.", lambda: gateway.links.connected_workers)
    metrics.watch(
        "open_requests", "Requests that workers hold for this gateway.", gateway.links.open_requests
    )
    metrics.watch(
        "background_tasks", "Settlements and releases under way.", lambda: gateway.background.running
    )
    metrics.watch(
        "quota_store_lost",
        "1 while the shared quota store does not answer.",
        lambda: gateway.quota.store_lost,
    )
    metrics.watch(
        "quota_unsettled", "Settlements that the store has not taken yet.", lambda: gateway.quota.unsettled
    )
    metrics.watch(
        "quota_open_leases",
        "Reservations of live requests of this gateway.",
        lambda: gateway.quota.open_leases,
    )
    metrics.watch_total(
        "quota_admitted_alone", "Requests admitted without the store.", lambda: gateway.quota.admitted_alone
    )
    metrics.watch_total(
        "quota_refused_alone", "Requests refused for lack of the store.", lambda: gateway.quota.refused_alone
    )
    return metrics
