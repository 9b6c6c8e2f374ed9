"""The admin API's routes for keys."""

import hmac

from fastapi import FastAPI
from ridgeline_contracts.errors import Conflict, InvalidRequest, NotAuthenticated, NotFound
from ridgeline_contracts.ids import KeyId
from ridgeline_contracts.keys import ApiKey, generate_key, hash_key, parse_key
from starlette.requests import Request
from starlette.responses import Response

from ridgeline_gateway.admin_bodies import KeyBody, RotationBody, key_object
from ridgeline_gateway.admin_parts import AdminParts, admin_json, admin_tenant, check_admin, read_admin_body
from ridgeline_gateway.api_schema import body_schema
from ridgeline_gateway.tenants import KeyRecord, Tenant


def add_key_routes(app: FastAPI, parts: AdminParts) -> None:
    """New keys, rotation, revocation."""

    @app.post(
        "/admin/tenants/{tenant_id}/keys", summary="A new key, shown once", openapi_extra=body_schema(KeyBody)
    )
    async def add_key(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        body = await read_admin_body(request, KeyBody, when_empty=KeyBody())
        tenant = await admin_tenant(parts, tenant_id)
        key = _given_key(body.key) if body.key is not None else generate_key(parts.random_bytes)
        record = _record(parts, tenant, key, ttl_s=body.ttl_s)
        existing = await parts.tenants.owner_of(key.key_id)
        if existing is not None:
            _check_same(existing.key, record)
            return admin_json(key_object(existing.key, now_wall_ms=parts.clock.wall_ms()))
        await parts.tenants.add_key(record)
        return _shown_once(parts, record, key)

    @app.post(
        "/admin/tenants/{tenant_id}/keys/rotate",
        summary="A new key, shown once; the others end after an overlap",
        openapi_extra=body_schema(RotationBody),
    )
    async def rotate(request: Request, tenant_id: str) -> Response:
        check_admin(request, parts)
        body = await read_admin_body(request, RotationBody, when_empty=RotationBody())
        tenant = await admin_tenant(parts, tenant_id)
        key = generate_key(parts.random_bytes)
        record = _record(parts, tenant, key, ttl_s=body.ttl_s)
        ends_ms = int(parts.clock.wall_ms() + body.overlap_s * 1000)
        await parts.tenants.rotate_keys(record, others_end_wall_ms=ends_ms)
        parts.authenticator.forget()
        return _shown_once(parts, record, key)

    @app.delete("/admin/keys/{key_id}", summary="Revoke a key", status_code=204)
    async def revoke_key(request: Request, key_id: str) -> Response:
        check_admin(request, parts)
        if not await parts.tenants.revoke_key(KeyId(key_id), at_wall_ms=int(parts.clock.wall_ms())):
            raise NotFound(f"there is no key {key_id!r}")
        parts.authenticator.forget()
        return Response(status_code=204)


def _shown_once(parts: AdminParts, record: KeyRecord, key: ApiKey) -> Response:
    shown = {**key_object(record, now_wall_ms=parts.clock.wall_ms()), "key": key.reveal()}
    return admin_json(shown, status_code=201)


def _given_key(text: str) -> ApiKey:
    try:
        return parse_key(text)
    except NotAuthenticated as error:
        raise InvalidRequest(error.message, param="key") from error


def _record(parts: AdminParts, tenant: Tenant, key: ApiKey, *, ttl_s: float | None) -> KeyRecord:
    now_ms = int(parts.clock.wall_ms())
    return KeyRecord(
        key_id=key.key_id,
        tenant_id=tenant.tenant_id,
        key_hash=hash_key(key, parts.secrets.pepper),
        created_ms=now_ms,
        expires_ms=None if ttl_s is None else now_ms + int(ttl_s * 1000),
    )


def _check_same(existing: KeyRecord, wanted: KeyRecord) -> None:
    same = existing.tenant_id == wanted.tenant_id and hmac.compare_digest(existing.key_hash, wanted.key_hash)
    if not same or existing.revoked_ms is not None:
        raise Conflict(
            f"key {wanted.key_id} exists already with another secret or tenant, or is revoked: make a new one"
        )
