"""The tenant that `up` makes for its user, and its key, which stays the same over runs."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from ridgeline_contracts.errors import PeerError
from ridgeline_contracts.keys import generate_key

from ridgeline_cli.up.private_files import read_private, write_private

TENANT_ID = "local"
_TIMEOUT_S = 30.0
# More than one person's machine spends in a week, refilled slowly enough that one sees it move.
_TENANT = {
    "name": "the user of this machine",
    "quota": {"rate_tokens_per_s": 100, "burst_tokens": 10_000_000},
}


def admin_client(admin_url: str, admin_key: str) -> httpx.AsyncClient:
    """A client of a gateway's admin port. Loopback only, so that a proxy of the environment is passed by."""
    headers = {"Authorization": f"Bearer {admin_key}"}
    return httpx.AsyncClient(base_url=admin_url, headers=headers, timeout=_TIMEOUT_S, trust_env=False)


async def ensure_tenant_key(path: Path, client: httpx.AsyncClient) -> str:
    """The key in `path`, made if it is missing, known to the gateway as the local tenant's.

    A tenant that exists is left as it is. A key that the gateway refuses (it was revoked, or the pepper has
    changed) is replaced by a new one. Raises PeerError for any other refusal.
    """
    held = read_private(path)
    key = _new_key() if held is None else held.strip()
    tenant_path = f"/admin/tenants/{TENANT_ID}"
    if (await client.get(tenant_path)).status_code == httpx.codes.NOT_FOUND:
        _check(await client.put(tenant_path, json=_TENANT))
    added = await _add_key(client, key)
    if added.status_code == httpx.codes.CONFLICT:
        key = _new_key()
        added = await _add_key(client, key)
    _check(added)
    if held is None or held.strip() != key:
        write_private(path, key + "\n")
    return key


def _new_key() -> str:
    return generate_key(secrets.token_bytes).reveal()


async def _add_key(client: httpx.AsyncClient, key: str) -> httpx.Response:
    body: Mapping[str, Any] = {"key": key}
    return await client.post(f"/admin/tenants/{TENANT_ID}/keys", json=body)


def _check(answer: httpx.Response) -> None:
    if not answer.is_success:
        request = answer.request
        asked = f"{request.method} {request.url}"
        raise PeerError(f"the gateway answered {answer.status_code} to {asked}: {answer.text[:500]}")
