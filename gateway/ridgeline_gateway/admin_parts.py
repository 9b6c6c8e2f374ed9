"""What the routes of the admin API share."""

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import NotAuthenticated, NotFound
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.health import Health
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.prices.book import PriceBook
from ridgeline_gateway.quota.desk import QuotaDesk
from ridgeline_gateway.quota.store import AccountStore
from ridgeline_gateway.request_body import parse_body
from ridgeline_gateway.settings import Secrets
from ridgeline_gateway.tenants import Tenant, TenantStore, check_tenant_id

_LIMIT_BYTES = 64 * 1024
_Body = TypeVar("_Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class AdminParts:
    """What the admin API stands on."""

    tenants: TenantStore
    quota: QuotaDesk
    accounts: AccountStore
    prices: PriceBook
    authenticator: Authenticator
    metrics: GatewayMetrics
    health: Callable[[], Health]
    secrets: Secrets
    clock: Clock
    random_bytes: Callable[[int], bytes]


def check_admin(request: Request, parts: AdminParts) -> None:
    """Raises NotAuthenticated without the admin credential."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    expected = parts.secrets.admin_key.encode()
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), expected):
        raise NotAuthenticated("the admin port wants the header Authorization: Bearer <admin key>")


async def admin_tenant(parts: AdminParts, tenant_id: str) -> Tenant:
    """Raises NotFound, or InvalidRequest for what is no tenant id."""
    tenant = await parts.tenants.tenant(check_tenant_id(tenant_id))
    if tenant is None:
        raise NotFound(f"there is no tenant {tenant_id!r}: PUT /admin/tenants/{tenant_id} makes one")
    return tenant


async def read_admin_body(request: Request, model: type[_Body], *, when_empty: _Body | None = None) -> _Body:
    return await parse_body(request, model, limit_bytes=_LIMIT_BYTES, when_empty=when_empty)


def admin_json(content: Any, *, status_code: int = 200) -> Response:
    return Response(orjson.dumps(content), status_code=status_code, media_type="application/json")
