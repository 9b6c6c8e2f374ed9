"""The operators' HTTP API, on a port of its own: tenants, keys, quota, health, metrics."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import Conflict, InvalidRequest, NotAuthenticated, NotFound, RidgelineError
from ridgeline_contracts.ids import KeyId
from ridgeline_contracts.keys import ApiKey, generate_key, hash_key, parse_key
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.admin_bodies import KeyBody, TenantBody, key_object, tenant_object
from ridgeline_gateway.api_schema import add_schemas, body_schema
from ridgeline_gateway.app import answer_http_exception, answer_ridgeline_error
from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.health import Health
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.quota import QuotaStore
from ridgeline_gateway.request_body import parse_body
from ridgeline_gateway.request_context import RequestContext
from ridgeline_gateway.settings import Secrets
from ridgeline_gateway.tenants import KeyRecord, Tenant, TenantStore, check_tenant_id

_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin API stands on."""

    tenants: TenantStore
    quota: QuotaStore
    authenticator: Authenticator
    metrics: GatewayMetrics
    health: Callable[[], Health]
    secrets: Secrets
    clock: Clock
    random_bytes: Callable[[int], bytes]


def create_admin_app(parts: AdminParts) -> FastAPI:
    """The application. All under /admin wants the admin credential; health and metrics want none."""
    app = FastAPI(title="Ridgeline admin", docs_url=None, redoc_url=None)
    app.add_exception_handler(RidgelineError, answer_ridgeline_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_middleware(
        RequestContext, random_bytes=parts.random_bytes, metrics=GatewayMetrics(), closing=lambda: False
    )
    _add_health(app, parts)
    _add_tenants(app, parts)
    _add_keys(app, parts)
    add_schemas(app, (TenantBody, KeyBody))
    return app


def _add_health(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/healthz", summary="The process lives")
    async def healthz() -> Response:
        return _json({"status": "ok"})

    @app.get("/readyz", summary="This gateway should get requests")
    async def readyz() -> Response:
        problem = parts.health().problem
        status = {"status": "ready"} if problem is None else {"status": "not ready", "reason": problem}
        return _json(status, status_code=200 if problem is None else 503)

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(parts.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/admin/health", summary="What readiness follows from")
    async def admin_health(request: Request) -> Response:
        _check_admin(request, parts)
        health = parts.health()
        return _json(
            {
                "ready": health.problem is None,
                "reason": health.problem,
                "router_reachable": health.router_reachable,
                "ready_workers": health.ready_workers,
                "connected_workers": health.connected_workers,
                "draining": health.draining,
            }
        )


def _add_tenants(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/admin/tenants", summary="All tenants")
    async def list_tenants(request: Request) -> Response:
        _check_admin(request, parts)
        found = await parts.tenants.tenants()
        return _json(
            {"tenants": [tenant_object(tenant, await parts.quota.standing(tenant)) for tenant in found]}
        )

    @app.put("/admin/tenants/{tenant_id}", summary="Create or replace", openapi_extra=body_schema(TenantBody))
    async def put_tenant(request: Request, tenant_id: str) -> Response:
        _check_admin(request, parts)
        body = await parse_body(request, TenantBody, limit_bytes=_LIMIT_BYTES)
        tenant = body.tenant(check_tenant_id(tenant_id))
        created = await parts.tenants.put_tenant(tenant)
        parts.authenticator.forget()
        return _json(
            tenant_object(tenant, await parts.quota.standing(tenant)), status_code=201 if created else 200
        )

    @app.get("/admin/tenants/{tenant_id}", summary="One tenant, its quota and keys")
    async def one_tenant(request: Request, tenant_id: str) -> Response:
        _check_admin(request, parts)
        tenant = await _tenant(parts, tenant_id)
        now_ms = parts.clock.wall_ms()
        keys = [key_object(key, now_wall_ms=now_ms) for key in await parts.tenants.keys(tenant.tenant_id)]
        return _json({**tenant_object(tenant, await parts.quota.standing(tenant)), "keys": keys})

    @app.delete("/admin/tenants/{tenant_id}", summary="Delete a tenant and its keys", status_code=204)
    async def delete_tenant(request: Request, tenant_id: str) -> Response:
        _check_admin(request, parts)
        if not await parts.tenants.delete_tenant(check_tenant_id(tenant_id)):
            raise NotFound(f"there is no tenant {tenant_id!r}")
        parts.authenticator.forget()
        return Response(status_code=204)


def _add_keys(app: FastAPI, parts: AdminParts) -> None:
    @app.post(
        "/admin/tenants/{tenant_id}/keys", summary="A new key, shown once", openapi_extra=body_schema(KeyBody)
    )
    async def add_key(request: Request, tenant_id: str) -> Response:
        _check_admin(request, parts)
        body = await parse_body(request, KeyBody, limit_bytes=_LIMIT_BYTES, when_empty=KeyBody())
        tenant = await _tenant(parts, tenant_id)
        key = _given_key(body.key) if body.key is not None else generate_key(parts.random_bytes)
        record = _record(parts, tenant, key, body)
        existing = await parts.tenants.owner_of(key.key_id)
        if existing is not None:
            _check_same(existing.key, record)
            return _json(key_object(existing.key, now_wall_ms=parts.clock.wall_ms()))
        await parts.tenants.add_key(record)
        shown = {**key_object(record, now_wall_ms=parts.clock.wall_ms()), "key": key.reveal()}
        return _json(shown, status_code=201)

    @app.delete("/admin/keys/{key_id}", summary="Revoke a key", status_code=204)
    async def revoke_key(request: Request, key_id: str) -> Response:
        _check_admin(request, parts)
        if not await parts.tenants.revoke_key(KeyId(key_id), at_wall_ms=int(parts.clock.wall_ms())):
            raise NotFound(f"there is no key {key_id!r}")
        parts.authenticator.forget()
        return Response(status_code=204)


def _given_key(text: str) -> ApiKey:
    try:
        return parse_key(text)
    except NotAuthenticated as error:
        raise InvalidRequest(error.message, param="key") from error


def _record(parts: AdminParts, tenant: Tenant, key: ApiKey, body: KeyBody) -> KeyRecord:
    now_ms = int(parts.clock.wall_ms())
    return KeyRecord(
        key_id=key.key_id,
        tenant_id=tenant.tenant_id,
        key_hash=hash_key(key, parts.secrets.pepper),
        created_ms=now_ms,
        expires_ms=None if body.ttl_s is None else now_ms + int(body.ttl_s * 1000),
    )


def _check_same(existing: KeyRecord, wanted: KeyRecord) -> None:
    same = existing.tenant_id == wanted.tenant_id and hmac.compare_digest(existing.key_hash, wanted.key_hash)
    if not same or existing.revoked_ms is not None:
        raise Conflict(
            f"key {wanted.key_id} exists already with another secret or tenant, or is revoked: make a new one"
        )


async def _tenant(parts: AdminParts, tenant_id: str) -> Tenant:
    tenant = await parts.tenants.tenant(check_tenant_id(tenant_id))
    if tenant is None:
        raise NotFound(f"there is no tenant {tenant_id!r}: PUT /admin/tenants/{tenant_id} makes one")
    return tenant


def _check_admin(request: Request, parts: AdminParts) -> None:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    expected = parts.secrets.admin_key.encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
        raise NotAuthenticated("the admin port wants the header Authorization: Bearer <admin key>")


def _json(content: Any, *, status_code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status_code, media_type="application/json")
