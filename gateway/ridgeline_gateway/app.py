"""The tenants' HTTP API."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import orjson
from fastapi import FastAPI
from ridgeline_contracts.errors import InvalidRequest, NotFound, RidgelineError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.api_chat import ChatBody
from ridgeline_gateway.api_completions import CompletionBody
from ridgeline_gateway.api_errors import error_headers
from ridgeline_gateway.api_messages import CountBody, MessagesBody
from ridgeline_gateway.api_responses import ResponsesBody
from ridgeline_gateway.api_schema import add_schemas, body_schema
from ridgeline_gateway.app_messages import add_message_routes, messages_model, messages_model_list
from ridgeline_gateway.app_parts import AppParts, arrival_of, reply_of, tenant_of
from ridgeline_gateway.directory import KnownModel
from ridgeline_gateway.ledger.reading import period_of, read_usage
from ridgeline_gateway.ledger.usage import usage_object
from ridgeline_gateway.messages_errors import shaped_error, speaks_messages
from ridgeline_gateway.render_chat import ChatRenderer
from ridgeline_gateway.render_completions import CompletionRenderer
from ridgeline_gateway.render_responses import ResponsesRenderer
from ridgeline_gateway.request_body import parse_body
from ridgeline_gateway.request_context import RequestContext

Lifespan: TypeAlias = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(parts: AppParts, *, lifespan: Lifespan | None = None) -> FastAPI:
    """The application. Every error it answers with is in OpenAI's shape and carries x-request-id."""
    app = FastAPI(title="Ridgeline", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_exception_handler(RidgelineError, answer_ridgeline_error)
    app.add_exception_handler(HTTPException, answer_http_exception)
    app.add_middleware(
        RequestContext, random_bytes=parts.random_bytes, metrics=parts.metrics, closing=parts.closing
    )
    _add_models(app, parts)
    _add_generation(app, parts)
    _add_responses(app, parts)
    _add_usage(app, parts)
    add_message_routes(app, parts)
    add_schemas(app, (ChatBody, CompletionBody, ResponsesBody, MessagesBody, CountBody))
    return app


def _add_models(app: FastAPI, parts: AppParts) -> None:
    @app.get("/v1/models", summary="Models that this key may use")
    async def list_models(request: Request) -> Response:
        tenant = await tenant_of(request, parts)
        if speaks_messages("", request.scope["headers"]):
            return _json(messages_model_list(parts.models.list_for(tenant)))
        found = [_model_object(name, known) for name, known in parts.models.list_for(tenant).items()]
        return _json({"object": "list", "data": found})

    @app.get("/v1/models/{model:path}", summary="One model")
    async def one_model(request: Request, model: str) -> Response:
        tenant = await tenant_of(request, parts)
        known = parts.models.known(tenant, model)
        if speaks_messages("", request.scope["headers"]):
            return _json(messages_model(model, known))
        return _json(_model_object(model, known))


def _add_generation(app: FastAPI, parts: AppParts) -> None:
    @app.post("/v1/chat/completions", summary="Reply to a conversation", openapi_extra=body_schema(ChatBody))
    async def chat(request: Request) -> Response:
        arrival = await arrival_of(request, parts)
        body = await parse_body(request, ChatBody, limit_bytes=parts.limits.max_body_bytes)
        run = await parts.admission.chat(arrival, body)
        renderer = ChatRenderer(run.facts, logprobs=bool(body.logprobs), usage=body.wants_usage)
        return reply_of(run, renderer, parts, stream=bool(body.stream))

    @app.post("/v1/completions", summary="Continue a text", openapi_extra=body_schema(CompletionBody))
    async def completion(request: Request) -> Response:
        arrival = await arrival_of(request, parts)
        body = await parse_body(request, CompletionBody, limit_bytes=parts.limits.max_body_bytes)
        run = await parts.admission.completion(arrival, body)
        renderer = CompletionRenderer(run.facts, logprobs=body.logprobs is not None, usage=body.wants_usage)
        return reply_of(run, renderer, parts, stream=bool(body.stream))


def _add_responses(app: FastAPI, parts: AppParts) -> None:
    @app.post("/v1/responses", summary="Reply to an input", openapi_extra=body_schema(ResponsesBody))
    async def responses(request: Request) -> Response:
        arrival = await arrival_of(request, parts)
        body = await parse_body(request, ResponsesBody, limit_bytes=parts.limits.max_body_bytes)
        run = await parts.admission.chat(arrival, body.chat())
        return reply_of(run, ResponsesRenderer(run.facts, body), parts, stream=bool(body.stream))


def _add_usage(app: FastAPI, parts: AppParts) -> None:
    @app.get("/v1/usage", summary="What this key's tenant used; start_time and end_time in Unix seconds")
    async def usage(request: Request) -> Response:
        tenant = await tenant_of(request, parts)
        query = request.query_params
        period = period_of(query.get("start_time"), query.get("end_time"), clock=parts.clock)
        lines = await read_usage(tenant.tenant_id, period, accounts=parts.accounts, tenants=parts.tenants)
        return _json(usage_object(lines, start_s=period.start_s, end_s=period.end_s))


def _model_object(name: str, known: KnownModel) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(known.first_seen_wall_ms // 1000),
        "owned_by": "ridgeline",
        "ridgeline": {"weights_revision": known.variant.weights_revision},
    }


def _json(content: Any) -> Response:
    return Response(orjson.dumps(content), media_type="application/json")


def error_response(request: Request, error: RidgelineError) -> Response:
    """An error as a whole reply."""
    shaped = shaped_error(
        error, request.state.request_id, path=request.url.path, headers=request.scope["headers"]
    )
    content = orjson.dumps(shaped)
    return Response(
        content, status_code=error.http_status, media_type="application/json", headers=error_headers(error)
    )


def answer_ridgeline_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RidgelineError)
    if error.http_status == 500:
        # To the outermost middleware, which logs it with its traceback.
        raise error
    return error_response(request, error)


def answer_http_exception(request: Request, error: Exception) -> Response:
    """The framework's own: no such route, or a method that the route does not have."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(request, NotFound(f"there is nothing at {request.url.path}"))
    response = error_response(request, InvalidRequest(f"{request.method} {request.url.path}: {error.detail}"))
    response.status_code = error.status_code
    response.headers.update(error.headers or {})
    return response
