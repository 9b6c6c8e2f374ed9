"""The routes that speak Anthropic's API, on the same core as OpenAI's."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import FastAPI
from ridgeline_contracts.ids import ModelName
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.api_messages import CountBody, MessagesBody
from ridgeline_gateway.api_schema import body_schema
from ridgeline_gateway.app_parts import AppParts, arrival_of, reply_of, tenant_of
from ridgeline_gateway.directory import KnownModel
from ridgeline_gateway.render_messages import MessagesRenderer
from ridgeline_gateway.request_body import parse_body


def add_message_routes(app: FastAPI, parts: AppParts) -> None:
    """/v1/messages and its token count."""
    limit_bytes = parts.limits.max_body_bytes

    @app.post("/v1/messages", summary="Reply to a conversation", openapi_extra=body_schema(MessagesBody))
    async def messages(request: Request) -> Response:
        arrival = await arrival_of(request, parts)
        body = await parse_body(request, MessagesBody, limit_bytes=limit_bytes)
        run = await parts.admission.chat(arrival, body.chat())
        return reply_of(run, MessagesRenderer(run.facts), parts, stream=bool(body.stream))

    @app.post("/v1/messages/count_tokens", summary="Tokens of a prompt", openapi_extra=body_schema(CountBody))
    async def count_tokens(request: Request) -> Response:
        tenant = await tenant_of(request, parts)
        body = await parse_body(request, CountBody, limit_bytes=limit_bytes)
        body.check()
        found = await parts.admission.count(tenant, body.model, body.chat_messages())
        return Response(orjson.dumps({"input_tokens": found}), media_type="application/json")


def messages_model(name: str, known: KnownModel) -> dict[str, Any]:
    """One model in Anthropic's shape."""
    seen = datetime.fromtimestamp(known.first_seen_wall_ms / 1000, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": seen.isoformat(timespec="seconds").replace("+00:00", "Z"),
    }


def messages_model_list(models: Mapping[ModelName, KnownModel]) -> dict[str, Any]:
    """All on one page."""
    data = [messages_model(name, known) for name, known in models.items()]
    return {
        "data": data,
        "has_more": False,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
