"""Nothing of one tenant reaches another through the prefix cache: salts differ outside a trust group."""

from dataclasses import replace
from typing import Any

from ridgeline_contracts.ids import TenantId
from ridgeline_contracts.keys import generate_key, hash_key
from ridgeline_gateway.tenants import KeyRecord, Tenant
from ridgeline_testing.gateway_platform import PEPPER


def chat() -> dict[str, Any]:
    return {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}


async def post(platform: Any, body: dict[str, Any]) -> Any:
    return await platform.client.post("/v1/chat/completions", json=body)


async def test_equal_prompts_of_two_tenants_have_unrelated_salts_unless_they_trust_each_other(
    platform: Any,
) -> None:
    await post(platform, chat())
    await platform.put_tenant(trust_group="friends")
    await post(platform, chat())
    first, second = platform.worker.submits
    assert first.cache_salt != second.cache_salt
    platform.tenant = replace(platform.tenant, name="renamed")
    await platform.put_tenant()
    await post(platform, chat())
    assert platform.worker.submits[2].cache_salt == second.cache_salt


async def test_equal_prompts_of_tenants_without_a_trust_group_have_unrelated_salts(platform: Any) -> None:
    await post(platform, chat())
    key = generate_key(lambda count: bytes(reversed(range(count))))
    other = Tenant(TenantId("other"), "Other")
    await platform.stores.tenants.put_tenant(other)
    record = KeyRecord(key.key_id, other.tenant_id, hash_key(key, PEPPER), created_ms=0)
    await platform.stores.tenants.add_key(record)
    headers = {"authorization": f"Bearer {key.reveal()}"}
    reply = await platform.client.post("/v1/chat/completions", json=chat(), headers=headers)
    assert reply.status_code == 200, reply.text
    first, second = platform.worker.submits
    assert (first.tenant, second.tenant) == ("acme", "other")
    assert first.cache_salt != second.cache_salt
