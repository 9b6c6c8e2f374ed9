"""What the routes of the tenants' API share."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.ids import RequestId
from starlette.requests import Request

from ridgeline_gateway.admission import Admission, Arrival
from ridgeline_gateway.authenticate import Authenticator
from ridgeline_gateway.deadlines import DEADLINE_HEADER, stated_deadline_ms
from ridgeline_gateway.metrics import GatewayMetrics
from ridgeline_gateway.quota.store import AccountStore
from ridgeline_gateway.render import Renderer
from ridgeline_gateway.replies import RunReply, StreamReply, WholeReply
from ridgeline_gateway.run import Run
from ridgeline_gateway.served_models import ServedModels
from ridgeline_gateway.settings import LimitSettings, TimingSettings
from ridgeline_gateway.tenants import Tenant, TenantStore


@dataclass(frozen=True, slots=True)
class AppParts:
    """What the API stands on; all of it is made and ended elsewhere."""

    authenticator: Authenticator
    tenants: TenantStore
    accounts: AccountStore
    models: ServedModels
    admission: Admission
    metrics: GatewayMetrics
    clock: Clock
    limits: LimitSettings
    timing: TimingSettings
    random_bytes: Callable[[int], bytes]
    closing: Callable[[], bool]
    """True from the moment on that this process shall end."""


async def tenant_of(request: Request, parts: AppParts) -> Tenant:
    """By the Authorization header, or by x-api-key as Anthropic's clients send it. Raises NotAuthenticated."""
    authorization = request.headers.get("authorization")
    if authorization is None and (key := request.headers.get("x-api-key")) is not None:
        authorization = f"Bearer {key}"
    return await parts.authenticator.tenant(authorization)


async def arrival_of(request: Request, parts: AppParts) -> Arrival:
    arrived_ms = parts.clock.monotonic_ms()
    tenant = await tenant_of(request, parts)
    most_ms = parts.timing.request_deadline_ms
    deadline_ms = stated_deadline_ms(request.headers.get(DEADLINE_HEADER), most_ms=most_ms)
    return Arrival(RequestId(request.state.request_id), tenant, arrived_ms, deadline_ms)


def reply_of(run: Run, renderer: Renderer, parts: AppParts, *, stream: bool) -> RunReply:
    if stream:
        timing = parts.timing
        return StreamReply(
            run,
            renderer,
            clock=parts.clock,
            metrics=parts.metrics,
            wait_ms=timing.status_wait_ms,
            stall_ms=timing.write_stall_ms,
        )
    return WholeReply(run, renderer, clock=parts.clock, metrics=parts.metrics)
