"""The admin API's routes for price versions and usage."""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ridgeline_contracts.errors import InvalidRequest
from ridgeline_contracts.ids import ModelName
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.admin_parts import AdminParts, admin_json, admin_tenant, check_admin, read_admin_body
from ridgeline_gateway.api_schema import body_schema
from ridgeline_gateway.ledger.reading import period_of, read_usage
from ridgeline_gateway.ledger.usage import audit_object, usage_object
from ridgeline_gateway.prices.price import LARGEST_WEIGHT_MICRO, UNIT_VERSION, Price, TokenRates
from ridgeline_gateway.quota.limits import MICRO

_PICO_PER_USD_PER_MILLION = 10**6
_LARGEST_WEIGHT = LARGEST_WEIGHT_MICRO / MICRO


class RatesBody(BaseModel):
    """A number for each kind of token."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: float = Field(ge=0)
    cached: float = Field(ge=0)
    output: float = Field(ge=0)

    def rates(self, factor: int) -> TokenRates:
        return TokenRates(
            round(self.prompt * factor), round(self.cached * factor), round(self.output * factor)
        )


class PriceBody(BaseModel):
    """A version to freeze."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str = Field(min_length=1, max_length=256)
    version: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    """Left out: v1, v2, ..."""
    weights: RatesBody
    """Resource tokens a token; kept as whole millionths."""
    usd_per_million: RatesBody | None = None
    """Left out: counted, not billed."""
    derivation: str = Field(default="typed in", max_length=2000)

    def price(self, version: str, *, frozen_ms: int) -> Price:
        """Raises InvalidRequest for weights that cannot be kept."""
        weights = self.weights.rates(MICRO)
        if (
            weights.output < 1
            or weights.prompt < 1
            or max(weights.prompt, weights.cached, weights.output) > (LARGEST_WEIGHT_MICRO)
        ):
            raise InvalidRequest(
                f"weights of prompt and output must be from a millionth to {_LARGEST_WEIGHT:g}",
                param="weights",
            )
        usd = None if self.usd_per_million is None else self.usd_per_million.rates(_PICO_PER_USD_PER_MILLION)
        return Price(version, ModelName(self.model), weights, usd, self.derivation, frozen_ms)


def add_price_routes(app: FastAPI, parts: AdminParts) -> None:
    """Price versions, and what tenants used."""

    @app.get("/admin/prices", summary="All price versions, those of a model oldest first")
    async def list_prices(request: Request) -> Response:
        check_admin(request, parts)
        return admin_json({"prices": [price_object(price) for price in await parts.tenants.prices()]})

    @app.post("/admin/prices", summary="Freeze a new price version", openapi_extra=body_schema(PriceBody))
    async def freeze(request: Request) -> Response:
        check_admin(request, parts)
        body = await read_admin_body(request, PriceBody)
        before = [price for price in await parts.tenants.prices() if price.model == body.model]
        version = body.version or f"v{len(before) + 1}"
        if version == UNIT_VERSION:
            raise InvalidRequest(f"version {version!r} is the one before any is frozen", param="version")
        price = body.price(version, frozen_ms=int(parts.clock.wall_ms()))
        await parts.tenants.freeze_price(price)
        parts.prices.forget()
        return admin_json(price_object(price), status_code=201)

    @app.get(
        "/admin/tenants/{tenant_id}/usage", summary="What a tenant used, and whether its bill can be redone"
    )
    async def usage(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        tenant = await admin_tenant(parts, tenant_id)
        query = request.query_params
        period = period_of(query.get("start_time"), query.get("end_time"), clock=parts.clock)
        lines = await read_usage(tenant.tenant_id, period, accounts=parts.accounts, tenants=parts.tenants)
        found = usage_object(lines, start_s=period.start_s, end_s=period.end_s)
        return admin_json({**found, "tenant": tenant.tenant_id, "audit": audit_object(lines)})


def price_object(price: Price) -> dict[str, Any]:
    """A version as the admin API shows it."""
    usd = price.usd_pico
    return {
        "model": price.model,
        "version": price.version,
        "weights": _rates_object(price.weights, MICRO),
        "usd_per_million": None if usd is None else _rates_object(usd, _PICO_PER_USD_PER_MILLION),
        "derivation": price.derivation,
        "frozen_ms": price.frozen_ms,
    }


def _rates_object(rates: TokenRates, factor: int) -> dict[str, float]:
    return {
        "prompt": rates.prompt / factor,
        "cached": rates.cached / factor,
        "output": rates.output / factor,
    }
