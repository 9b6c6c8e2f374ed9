"""Accounts and ledger in Redis: the store that several gateways share. One Lua script a step, on Redis' own time.

All keys of a tenant lie in one slot, `{TENANT}`:

    ridgeline:{TENANT}:account           hash: both buckets
    ridgeline:{TENANT}:leases            hash: lease id -> lease
    ridgeline:{TENANT}:refundable-tokens, ...:refundable-kv    leases that can give something back, oldest first
    ridgeline:{TENANT}:expiry            leases by when they run out
    ridgeline:{TENANT}:settled, ...:settled-at    settlements that may still be repeated
    ridgeline:{TENANT}:ledger            stream: one record a settled request
"""

from collections.abc import Mapping, Sequence
from importlib import resources

from ridgeline_contracts.ids import TenantId

from ridgeline_gateway.ledger.record import LedgerRecord, read_entry, read_grants
from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.limits import Amounts, QuotaLimits
from ridgeline_gateway.quota.steps import Status, StepResult
from ridgeline_gateway.quota.store import ALIVE_MS, LEASE_MS, REMEMBER_MS
from ridgeline_gateway.redis_link import RedisLink, Script, StoreUnreachable

_GATEWAYS = "ridgeline:gateways"
_ANNOUNCE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""
STEPS = ("standing", "reserve", "renew", "settle", "restore")
_PARTS = (
    "account",
    "leases",
    "refundable-tokens",
    "refundable-kv",
    "expiry",
    "settled",
    "settled-at",
    "ledger",
)


def lua_of(name: str) -> str:
    """The text of one file of `lua/`."""
    return resources.files("ridgeline_gateway.quota").joinpath("lua", f"{name}.lua").read_text("utf-8")


def account_scripts(clock: str | None = None) -> Mapping[str, Script]:
    """The script of each step. `clock` replaces the part that reads the time: for tests."""
    head = (clock or lua_of("clock")) + lua_of("account")
    return {step: Script(head + lua_of(step)) for step in STEPS}


class RedisAccounts:
    """An AccountStore in Redis. It is as durable as that Redis: give it an append-only file.

    Takes over the link: `close` ends it.
    """

    def __init__(
        self,
        link: RedisLink,
        *,
        scripts: Mapping[str, Script] | None = None,
        lease_ms: int = LEASE_MS,
        remember_ms: int = REMEMBER_MS,
    ) -> None:
        self.link = link
        self._scripts = scripts or account_scripts()
        self._announce = Script(_ANNOUNCE)
        self._lease_us = lease_ms * 1000
        self._remember_us = remember_ms * 1000

    @property
    def epoch(self) -> int:
        return self.link.epoch

    async def announce(self, gateway_id: str) -> int:
        return int(await self.link.run(self._announce, (_GATEWAYS,), lambda server: (gateway_id, ALIVE_MS)))

    async def standing(self, tenant_id: TenantId, limits: QuotaLimits) -> StepResult:
        return await self._step("standing", tenant_id, limits, LeaseId(""), Amounts())

    async def reserve(
        self, tenant_id: TenantId, limits: QuotaLimits, lease_id: LeaseId, wanted: Amounts
    ) -> StepResult:
        return await self._step("reserve", tenant_id, limits, lease_id, wanted)

    async def renew(
        self,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        totals: Amounts,
        *,
        recovered: bool = False,
    ) -> StepResult:
        return await self._step("renew", tenant_id, limits, lease_id, totals, recovered=recovered)

    async def restore(
        self, tenant_id: TenantId, limits: QuotaLimits, seen: Amounts, *, seen_us: int
    ) -> StepResult:
        return await self._step("restore", tenant_id, limits, LeaseId(""), seen, seen_us=seen_us)

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
        return await self._step("settle", tenant_id, limits, lease_id, charged, entry, recovered=recovered)

    async def records(
        self, tenant_id: TenantId, *, since_ms: int, until_ms: int, after: str | None, most: int
    ) -> list[LedgerRecord]:
        begin = f"({after}" if after is not None else str(since_ms)
        key = _keys(tenant_id)[-1]
        found = await self.link.command("XRANGE", key, begin, f"({until_ms}", "COUNT", most)
        return [_record(position, fields) for position, fields in found]

    async def close(self) -> None:
        await self.link.close()

    async def _step(
        self,
        step: str,
        tenant_id: TenantId,
        limits: QuotaLimits,
        lease_id: LeaseId,
        amounts: Amounts,
        entry: str = "",
        *,
        recovered: bool = False,
        seen_us: int = 0,
    ) -> StepResult:
        arguments: list[str | int] = [lease_id, self._lease_us, self._remember_us]
        for bucket in limits.buckets:
            arguments += (0, 0) if bucket is None else (bucket.rate_micro_per_s, bucket.burst_micro)
        arguments += [limits.debt_cap_micro, limits.max_concurrent or 0, *amounts, entry]

        def with_life(server: str) -> list[str | int]:
            return [*arguments, server, int(recovered), seen_us]

        script, keys = self._scripts[step], _keys(tenant_id)
        try:
            return _result(await self.link.run(script, keys, with_life))
        except StoreUnreachable:
            # A connection that has died in the pool is found out by using it; the step may be repeated.
            return _result(await self.link.run(script, keys, with_life))


def _keys(tenant_id: TenantId) -> list[str]:
    return [f"ridgeline:{{{tenant_id}}}:{part}" for part in _PARTS]


def _result(words: Sequence[int]) -> StepResult:
    status, *numbers, open_leases, now_us = words
    pairs = [Amounts(*numbers[index : index + 2]) for index in range(0, 12, 2)]
    reserved, charged, refunded, level, carry, held = pairs
    return StepResult(Status(status), reserved, charged, refunded, level, carry, held, open_leases, now_us)


def _record(position: bytes | str, fields: Mapping[bytes, bytes]) -> LedgerRecord:
    held = {name.decode(): value.decode() for name, value in fields.items()}
    return LedgerRecord(
        position=position.decode() if isinstance(position, bytes) else position,
        lease_id=held["lease"],
        settled_us=int(held["settled_us"]),
        late=held["late"] == "1",
        reserved_micro=int(held["reserved"]),
        charged_micro=int(held["charged"]),
        refunded_micro=int(held["refunded"]),
        kv_charged_micro=int(held["kv_charged"]),
        grants=read_grants(held["grants"]),
        entry=read_entry(held["entry"]),
    )
