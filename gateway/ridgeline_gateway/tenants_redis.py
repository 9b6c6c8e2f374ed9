"""Tenants and keys in Redis: the store that several gateways share.

All keys lie in one slot, `{tenants}`:

    ridgeline:{tenants}:prices         list: price versions, oldest first
    ridgeline:{tenants}:price-names    set: model and version of each
    ridgeline:{tenants}:documents      hash: tenant id -> document
    ridgeline:{tenants}:keys:TENANT    set: key ids
    ridgeline:{tenants}:key:KEY        hash: tenant, hash, created, and where they apply expires, revoked
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline_contracts.errors import Conflict, NotFound
from ridgeline_contracts.ids import KeyId, TenantId

from ridgeline_gateway.prices.price import Price, price_document, read_price, version_exists
from ridgeline_gateway.redis_link import RedisLink, Script
from ridgeline_gateway.tenant_documents import read_tenant, tenant_document
from ridgeline_gateway.tenants import KeyOwner, KeyRecord, Tenant

_PREFIX = "ridgeline:{tenants}"
_DOCUMENTS = f"{_PREFIX}:documents"
_PRICES, _PRICE_NAMES = f"{_PREFIX}:prices", f"{_PREFIX}:price-names"

# Arguments: tenant, key id, hash, created, expires or '', end of the others or '', prefix of key records.
_ADD_KEY = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 'no tenant' end
if redis.call('EXISTS', KEYS[3]) == 1 then return 'taken' end
if ARGV[6] ~= '' then
  for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    local key = ARGV[7] .. id
    local ends = redis.call('HGET', key, 'expires')
    if not ends or tonumber(ends) > tonumber(ARGV[6]) then redis.call('HSET', key, 'expires', ARGV[6]) end
  end
end
redis.call('HSET', KEYS[3], 'tenant', ARGV[1], 'hash', ARGV[3], 'created', ARGV[4])
if ARGV[5] ~= '' then redis.call('HSET', KEYS[3], 'expires', ARGV[5]) end
redis.call('SADD', KEYS[2], ARGV[2])
return 'added'
"""
_FREEZE = """
if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[2])
return 1
"""
_REVOKE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSETNX', KEYS[1], 'revoked', ARGV[1])
return 1
"""
_DELETE = """
for _, id in ipairs(redis.call('SMEMBERS', KEYS[2])) do redis.call('DEL', ARGV[2] .. id) end
redis.call('DEL', KEYS[2])
return redis.call('HDEL', KEYS[1], ARGV[1])
"""
_OWNER = """
local key = redis.call('HGETALL', KEYS[2])
if #key == 0 then return {} end
return {key, redis.call('HGET', KEYS[1], redis.call('HGET', KEYS[2], 'tenant'))}
"""
_KEYS = """
local found = {}
for _, id in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  table.insert(found, {id, redis.call('HGETALL', ARGV[1] .. id)})
end
return found
"""


class RedisTenants:
    """A TenantStore in Redis. What is kept lives as long as that Redis keeps it: give it an append-only file.

    Takes over the link: `close` ends it.
    """

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._add, self._revoke, self._delete = Script(_ADD_KEY), Script(_REVOKE), Script(_DELETE)
        self._freeze = Script(_FREEZE)
        self._owner, self._keys = Script(_OWNER), Script(_KEYS)

    async def put_tenant(self, tenant: Tenant) -> bool:
        made = await self._link.command("HSET", _DOCUMENTS, tenant.tenant_id, tenant_document(tenant))
        return int(made) == 1

    async def tenant(self, tenant_id: TenantId) -> Tenant | None:
        document = await self._link.command("HGET", _DOCUMENTS, tenant_id)
        return None if document is None else read_tenant(document.decode())

    async def tenants(self) -> list[Tenant]:
        documents = await self._link.command("HVALS", _DOCUMENTS)
        found = [read_tenant(document.decode()) for document in documents]
        return sorted(found, key=lambda tenant: tenant.tenant_id)

    async def delete_tenant(self, tenant_id: TenantId) -> bool:
        keys = (_DOCUMENTS, _keys_of(tenant_id))
        return bool(await self._step(self._delete, keys, tenant_id, _record(KeyId(""))))

    async def add_key(self, key: KeyRecord) -> None:
        await self._add_key(key, others_end_wall_ms=None)

    async def rotate_keys(self, key: KeyRecord, *, others_end_wall_ms: int) -> None:
        await self._add_key(key, others_end_wall_ms=others_end_wall_ms)

    async def keys(self, tenant_id: TenantId) -> list[KeyRecord]:
        found = await self._step(self._keys, (_keys_of(tenant_id),), _record(KeyId("")))
        records = [_key(key_id.decode(), fields) for key_id, fields in found]
        return sorted(records, key=lambda key: (key.created_ms, key.key_id))

    async def revoke_key(self, key_id: KeyId, *, at_wall_ms: int) -> bool:
        return bool(await self._step(self._revoke, (_record(key_id),), at_wall_ms))

    async def freeze_price(self, price: Price) -> None:
        words = (f"{price.model} {price.version}", price_document(price))
        if not await self._step(self._freeze, (_PRICES, _PRICE_NAMES), *words):
            raise version_exists(price)

    async def prices(self) -> list[Price]:
        documents = await self._link.command("LRANGE", _PRICES, 0, -1)
        return [read_price(document.decode()) for document in documents]

    async def owner_of(self, key_id: KeyId) -> KeyOwner | None:
        found = await self._step(self._owner, (_DOCUMENTS, _record(key_id)))
        if not found:
            return None
        return KeyOwner(_key(key_id, found[0]), read_tenant(found[1].decode()))

    async def close(self) -> None:
        await self._link.close()

    async def _step(self, script: Script, keys: Sequence[str], *arguments: str | bytes | int) -> Any:
        return await self._link.run(script, keys, lambda server: arguments)

    async def _add_key(self, key: KeyRecord, *, others_end_wall_ms: int | None) -> None:
        keys = (_DOCUMENTS, _keys_of(key.tenant_id), _record(key.key_id))
        expires = "" if key.expires_ms is None else key.expires_ms
        others = "" if others_end_wall_ms is None else others_end_wall_ms
        words = (key.tenant_id, key.key_id, key.key_hash, key.created_ms, expires, others, _record(KeyId("")))
        outcome = await self._step(self._add, keys, *words)
        if outcome == b"no tenant":
            raise NotFound(f"there is no tenant {key.tenant_id!r}: create it first")
        if outcome == b"taken":
            raise Conflict(f"there is a key {key.key_id} already")


def _keys_of(tenant_id: TenantId) -> str:
    return f"{_PREFIX}:keys:{tenant_id}"


def _record(key_id: KeyId) -> str:
    return f"{_PREFIX}:key:{key_id}"


def _key(key_id: str, words: Sequence[bytes]) -> KeyRecord:
    fields: Mapping[bytes, bytes] = dict(zip(words[::2], words[1::2], strict=True))
    return KeyRecord(
        key_id=KeyId(key_id),
        tenant_id=TenantId(fields[b"tenant"].decode()),
        key_hash=fields[b"hash"],
        created_ms=int(fields[b"created"]),
        expires_ms=int(fields[b"expires"]) if b"expires" in fields else None,
        revoked_ms=int(fields[b"revoked"]) if b"revoked" in fields else None,
    )
