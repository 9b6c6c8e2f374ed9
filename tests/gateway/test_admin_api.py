"""The admin API: tenants, keys, quota, health and metrics on a port of their own."""

from typing import Any

import httpx
import pytest
from ridgeline_contracts.keys import generate_key
from ridgeline_contracts.proto import router_pb2

TENANT = {
    "name": "Globex",
    "models": ["fake-model"],
    "weight": 2.0,
    "class": "batch",
    "quota": {"rate_tokens_per_s": 10.5, "burst_tokens": 1000},
    "trust_group": "friends",
    "max_context_tokens": 2048,
    "max_output_tokens": 256,
    "kv_quota": {"rate_token_s_per_s": 4096.0, "burst_token_s": 100000.0},
    "max_concurrent_requests": 8,
    "debt_cap_tokens": 12.5,
    "on_store_loss": "closed",
}


async def works(platform: Any, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return int((await platform.client.get("/v1/models", headers=headers)).status_code)


async def test_a_tenant_is_created_read_replaced_and_deleted(platform: Any) -> None:
    admin = platform.admin
    created = await admin.put("/admin/tenants/globex", json=TENANT)
    assert created.status_code == 201
    read = (await admin.get("/admin/tenants/globex")).json()
    assert {name: read[name] for name in TENANT} == TENANT
    assert read["standing"]["remaining_tokens"] == 1000
    assert read["keys"] == []
    replaced = await admin.put("/admin/tenants/globex", json={})
    assert replaced.status_code == 200
    assert replaced.json()["quota"] is None
    assert [tenant["id"] for tenant in (await admin.get("/admin/tenants")).json()["tenants"]] == [
        "acme",
        "globex",
    ]
    assert (await admin.delete("/admin/tenants/globex")).status_code == 204
    assert (await admin.get("/admin/tenants/globex")).status_code == 404
    assert (await admin.delete("/admin/tenants/globex")).status_code == 404


async def test_a_change_leaves_the_other_fields_as_they_are(platform: Any) -> None:
    admin = platform.admin
    await admin.put("/admin/tenants/globex", json=TENANT)
    changed = await admin.patch("/admin/tenants/globex", json={"weight": 3.0, "quota": None})
    assert changed.status_code == 200
    read = (await admin.get("/admin/tenants/globex")).json()
    assert {name: read[name] for name in TENANT} == TENANT | {"weight": 3.0, "quota": None}
    wrong = await admin.patch("/admin/tenants/globex", json={"wait": 3.0})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "wait")
    assert (await admin.patch("/admin/tenants/initech", json={})).status_code == 404


async def test_a_rotation_gives_a_new_key_and_the_old_ones_an_end(platform: Any) -> None:
    admin = platform.admin
    first = (await admin.post("/admin/tenants/acme/keys")).json()
    second = await admin.post("/admin/tenants/acme/keys/rotate", json={"overlap_s": 3600})
    assert second.status_code == 201
    third = (
        await admin.post("/admin/tenants/acme/keys/rotate", json={"overlap_s": 3600, "ttl_s": 60})
    ).json()
    assert third["expires_ms"] - third["created_ms"] == 60_000
    assert [await works(platform, key["key"]) for key in (first, second.json(), third)] == [200, 200, 200]
    last = (await admin.post("/admin/tenants/acme/keys/rotate")).json()
    assert [await works(platform, key["key"]) for key in (first, second.json(), third)] == [401, 401, 401]
    assert await works(platform, last["key"]) == 200


async def test_a_key_is_shown_once_works_and_is_revoked_at_once(platform: Any) -> None:
    admin = platform.admin
    await admin.put("/admin/tenants/globex", json={})
    made = await admin.post("/admin/tenants/globex/keys")
    assert made.status_code == 201
    key = made.json()["key"]
    assert await works(platform, key) == 200
    listed = (await admin.get("/admin/tenants/globex")).json()["keys"]
    assert [(entry["id"], entry["works"]) for entry in listed] == [(made.json()["id"], True)]
    assert key not in str(listed)
    assert (await admin.delete(f"/admin/keys/{made.json()['id']}")).status_code == 204
    assert await works(platform, key) == 401
    assert (await admin.delete("/admin/keys/nothing")).status_code == 404


async def test_two_keys_of_a_tenant_overlap(platform: Any) -> None:
    keys = [(await platform.admin.post("/admin/tenants/acme/keys")).json() for _ in range(2)]
    await platform.admin.delete(f"/admin/keys/{keys[0]['id']}")
    assert [await works(platform, key["key"]) for key in keys] == [401, 200]


async def test_a_key_with_a_lifetime_expires(platform: Any) -> None:
    short = (await platform.admin.post("/admin/tenants/acme/keys", json={"ttl_s": 0.0005})).json()
    long = (await platform.admin.post("/admin/tenants/acme/keys", json={"ttl_s": 3600})).json()
    assert short["expires_ms"] - short["created_ms"] == 0
    assert [await works(platform, key["key"]) for key in (short, long)] == [401, 200]


async def test_a_key_made_elsewhere_is_taken_once_and_again(platform: Any) -> None:
    key = generate_key(lambda count: b"\x07" * count).reveal()
    path = "/admin/tenants/acme/keys"
    assert (await platform.admin.post(path, json={"key": key})).status_code == 201
    again = await platform.admin.post(path, json={"key": key})
    assert (again.status_code, "key" in again.json()) == (200, False)
    assert await works(platform, key) == 200


@pytest.mark.parametrize("change", ["another-secret", "another-tenant", "revoked"])
async def test_a_key_id_that_is_taken_is_a_conflict(platform: Any, change: str) -> None:
    key = generate_key(lambda count: b"\x07" * count)
    await platform.admin.post("/admin/tenants/acme/keys", json={"key": key.reveal()})
    await platform.admin.put("/admin/tenants/globex", json={})
    path, text = "/admin/tenants/acme/keys", key.reveal()
    if change == "another-secret":
        text = f"rl-{key.key_id}-{'x' * 43}"
    elif change == "another-tenant":
        path = "/admin/tenants/globex/keys"
    else:
        await platform.admin.delete(f"/admin/keys/{key.key_id}")
    assert (await platform.admin.post(path, json={"key": text})).status_code == 409


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        pytest.param("/admin/tenants/Bad_Id", {}, "id", id="tenant-id"),
        pytest.param("/admin/tenants/a", {"class": "gold"}, "class", id="class"),
        pytest.param("/admin/tenants/a", {"weight": 0}, "weight", id="weight"),
        pytest.param("/admin/tenants/a", {"on_store_loss": "panic"}, "on_store_loss", id="store-loss"),
        pytest.param("/admin/tenants/a", {"color": "red"}, "color", id="unknown-field"),
        pytest.param(
            "/admin/tenants/a",
            {"quota": {"rate_tokens_per_s": 1, "burst_tokens": 1e-9}},
            "quota",
            id="a-quota-too-small-to-keep",
        ),
        pytest.param(
            "/admin/tenants/a", {"quota": {"burst_tokens": 1}}, "quota.rate_tokens_per_s", id="half-a-quota"
        ),
    ],
)
async def test_a_bad_tenant_is_a_400_that_names_the_field(
    platform: Any, path: str, body: Any, param: str
) -> None:
    reply = await platform.admin.put(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic x"])
async def test_all_under_admin_wants_the_credential(platform: Any, authorization: str | None) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    transport = httpx.ASGITransport(platform.gateway.admin_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://admin", headers=headers) as client:
        for method, path in (
            ("GET", "/admin/tenants"),
            ("GET", "/admin/tenants/acme"),
            ("PUT", "/admin/tenants/acme"),
            ("PATCH", "/admin/tenants/acme"),
            ("DELETE", "/admin/tenants/acme"),
            ("POST", "/admin/tenants/acme/keys/rotate"),
            ("POST", "/admin/tenants/acme/keys"),
            ("DELETE", "/admin/keys/x"),
            ("GET", "/admin/health"),
        ):
            reply = await client.request(method, path)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200


async def test_a_tenants_key_does_not_open_the_admin_port(platform: Any) -> None:
    headers = {"authorization": f"Bearer {platform.key}"}
    assert (await platform.admin.get("/admin/tenants", headers=headers)).status_code == 401


async def test_readiness_follows_router_and_workers(platform: Any) -> None:
    assert (await platform.admin.get("/admin/health")).json()["ready"] is True
    platform.router.tell(platform.worker.info(router_pb2.WORKER_STATE_STARTING))
    await platform.gateway.directory.change()
    not_ready = await platform.admin.get("/readyz")
    assert (not_ready.status_code, not_ready.json()["reason"]) == (503, "no worker is ready")
    platform.router.tell(platform.worker.info())
    await platform.gateway.directory.change()
    assert (await platform.admin.get("/readyz")).status_code == 200
    platform.gateway.drain()
    assert (await platform.admin.get("/readyz")).json()["reason"] == "draining"


async def test_metrics_count_tokens_and_outcomes(platform: Any) -> None:
    tokens = platform.worker.say("hello world", cached_tokens=4).tokens[0]
    body = {"model": "fake-model", "messages": [{"role": "user", "content": "hello"}]}
    await platform.client.post("/v1/chat/completions", json=body)
    platform.worker.answer([[40]], error_code="invalid_request")
    await platform.client.post("/v1/chat/completions", json=body)
    await platform.settled()
    lines = (await platform.admin.get("/metrics")).text.splitlines()
    labels = 'model="fake-model",outcome="ok",tenant="acme"'
    assert f"ridgeline_gateway_requests_total{{{labels}}} 1.0" in lines
    assert any('outcome="invalid_request"' in line and line.endswith(" 1.0") for line in lines)
    kinds = 'kind="{}",model="fake-model",tenant="acme"'
    assert f"ridgeline_gateway_tokens_total{{{kinds.format('output')}}} {float(len(tokens))}" in lines
    assert f"ridgeline_gateway_tokens_total{{{kinds.format('cached')}}} 4.0" in lines
    assert 'ridgeline_gateway_http_responses_total{status="400"} 1.0' in lines
    assert "ridgeline_gateway_requests_in_flight 0.0" in lines
    assert "ridgeline_gateway_ready 1.0" in lines
    assert any(line.startswith("ridgeline_gateway_ttft_seconds_count") for line in lines)
