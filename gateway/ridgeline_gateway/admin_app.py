"""The operators' HTTP API, on a port of its own: tenants, keys, quota, health, metrics."""

from typing import Any

from fastapi import FastAPI
from pydantic import RootModel
from ridgeline_contracts.errors import NotFound, RidgelineError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.admin_bodies import (
    KeyBody,
    RotationBody,
    TenantBody,
    key_object,
    merged_tenant,
    tenant_object,
)
from ridgeline_gateway.admin_keys import add_key_routes
from ridgeline_gateway.admin_parts import AdminParts, admin_json, admin_tenant, check_admin, read_admin_body
from ridgeline_gateway.admin_prices import PriceBody, add_price_routes, price_object
from ridgeline_gateway.api_schema import add_schemas, body_schema
from ridgeline_gateway.app import answer_http_exception, answer_ridgeline_error
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.request_context import RequestContext
from ridgeline_gateway.tenants import check_tenant_id


class Changes(RootModel[dict[str, Any]]):
    """Fields of a tenant to change."""


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
    add_key_routes(app, parts)
    add_price_routes(app, parts)
    add_schemas(app, (TenantBody, KeyBody, RotationBody, PriceBody))
    return app


def _add_health(app: FastAPI, parts: AdminParts) -> None:
    @app.get("/healthz", summary="The process lives")
    async def healthz() -> Response:
        return admin_json({"status": "ok"})

    @app.get("/readyz", summary="This gateway should get requests")
    async def readyz() -> Response:
        problem = parts.health().problem
        status = {"status": "ready"} if problem is None else {"status": "not ready", "reason": problem}
        return admin_json(status, status_code=200 if problem is None else 503)

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(parts.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/admin/health", summary="What readiness follows from")
    async def admin_health(request: Request) -> Response:
        check_admin(request, parts)
        health = parts.health()
        return admin_json(
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
        check_admin(request, parts)
        found = await parts.tenants.tenants()
        return admin_json(
            {"tenants": [tenant_object(tenant, await parts.quota.standing(tenant)) for tenant in found]}
        )

    @app.put("/admin/tenants/{tenant_id}", summary="Create or replace", openapi_extra=body_schema(TenantBody))
    async def put_tenant(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        body = await read_admin_body(request, TenantBody)
        tenant = body.tenant(check_tenant_id(tenant_id))
        created = await parts.tenants.put_tenant(tenant)
        parts.authenticator.forget()
        return admin_json(
            tenant_object(tenant, await parts.quota.standing(tenant)), status_code=201 if created else 200
        )

    @app.patch("/admin/tenants/{tenant_id}", summary="Change the given fields")
    async def patch_tenant(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        changes = await read_admin_body(request, Changes)
        before = await admin_tenant(parts, tenant_id)
        tenant = merged_tenant(before, changes.root).tenant(before.tenant_id)
        await parts.tenants.put_tenant(tenant)
        parts.authenticator.forget()
        return admin_json(tenant_object(tenant, await parts.quota.standing(tenant)))

    @app.get("/admin/tenants/{tenant_id}", summary="One tenant, its quota and keys")
    async def one_tenant(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        tenant = await admin_tenant(parts, tenant_id)
        now_ms = parts.clock.wall_ms()
        keys = [key_object(key, now_wall_ms=now_ms) for key in await parts.tenants.keys(tenant.tenant_id)]
        newest = {price.model: price for price in await parts.tenants.prices() if tenant.may_use(price.model)}
        prices = [price_object(newest[model]) for model in sorted(newest)]
        found = tenant_object(tenant, await parts.quota.standing(tenant))
        return admin_json({**found, "keys": keys, "prices": prices})

    @app.delete("/admin/tenants/{tenant_id}", summary="Delete a tenant and its keys", status_code=204)
    async def delete_tenant(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        if not await parts.tenants.delete_tenant(check_tenant_id(tenant_id)):
            raise NotFound(f"there is no tenant {tenant_id!r}")
        parts.authenticator.forget()
        return Response(status_code=204)
