"""Reading a request's body, bounded, into a checked model."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from ridgeline_contracts.errors import Cancelled, InvalidRequest
from starlette.requests import ClientDisconnect, Request

from ridgeline_gateway.api_errors import BodyTooLarge, BodyTooSlow, invalid_body

BODY_TIMEOUT_S = 60.0
_Body = TypeVar("_Body", bound=BaseModel)


async def read_body(request: Request, *, limit_bytes: int) -> bytes:
    """Raises BodyTooLarge, as early as the length is known, BodyTooSlow, or Cancelled when the client goes away."""
    stated = request.headers.get("content-length", "")
    if stated.isascii() and stated.isdigit() and int(stated) > limit_bytes:
        raise _too_large(limit_bytes)
    pieces, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for piece in request.stream():
                size += len(piece)
                if size > limit_bytes:
                    raise _too_large(limit_bytes)
                pieces.append(piece)
    except TimeoutError as error:
        raise BodyTooSlow(
            f"the body did not arrive within {BODY_TIMEOUT_S:g} s: send it faster, or send less"
        ) from error
    except ClientDisconnect as error:
        raise Cancelled("the client went away while it sent its request") from error
    return b"".join(pieces)


async def parse_body(
    request: Request, model: type[_Body], *, limit_bytes: int, when_empty: _Body | None = None
) -> _Body:
    """An empty body is `when_empty`, where that is given. Raises InvalidRequest that names the field at fault."""
    raw = await read_body(request, limit_bytes=limit_bytes)
    if not raw and when_empty is not None:
        return when_empty
    if not raw:
        raise InvalidRequest("the body is empty: send a JSON object")
    try:
        return model.model_validate_json(raw)
    except ValidationError as error:
        raise invalid_body(error) from error


def _too_large(limit_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is larger than {limit_bytes} bytes: send less, or several requests")
