"""Which stores a gateway uses: SQLite files of its own, or the Redis that it shares with others."""

from ridgeline_contracts.clock import Clock

from ridgeline_gateway.gateway import GatewayStores
from ridgeline_gateway.quota.redis_store import RedisAccounts
from ridgeline_gateway.quota.sqlite_store import SqliteAccounts
from ridgeline_gateway.redis_link import RedisLink
from ridgeline_gateway.settings import GatewaySettings
from ridgeline_gateway.tenants_redis import RedisTenants
from ridgeline_gateway.tenants_sqlite import SqliteTenants


def open_stores(settings: GatewaySettings, *, clock: Clock) -> GatewayStores:
    """Raises SettingsError for files or an address that cannot be used. A Redis that is down is no error here."""
    store = settings.store
    if store.redis_url is None:
        accounts = SqliteAccounts(store.quota_file, clock=clock)
        return GatewayStores(SqliteTenants(store.tenants_file), accounts)
    link = RedisLink(store.redis_url)
    return GatewayStores(RedisTenants(link), RedisAccounts(link))
