"""The tenant that `up` makes for its user, and its key, which stays the same over runs."""

from pathlib import Path
from typing import Any

import httpx
from ridgeline_contracts.errors import PeerError

from ridgeline_cli.up.private_files import read_private, write_private

TENANT_ID = "local"
_TIMEOUT_S = 30.0
# In resource tokens (a prompt token of the reference model is 1): more than one person's machine can spend, and
# small enough to see it move.
_QUOTA = {"rate_per_s": 100_000, "burst": 1_000_000}


async def ensure_tenant_key(path: Path, *, base_url: str, admin_url: str, admin_key: str) -> str:
    """The key in `path` if the gateway takes it, else a new one, written there.

    A data folder whose tenant store was removed thus gets a new key. Raises PeerError if the gateway refuses.
    """
    held = read_private(path)
    async with httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False) as client:
        if held is not None and await _is_taken(client, base_url, held.strip()):
            return held.strip()
        admin = {"Authorization": f"Bearer {admin_key}"}
        tenant = {"name": "this machine's user", "quota": _QUOTA}
        await _ask(client, "PUT", f"{admin_url}/admin/v1/tenants/{TENANT_ID}", admin, tenant)
        made = await _ask(client, "POST", f"{admin_url}/admin/v1/tenants/{TENANT_ID}/keys", admin, {})
        key = str(made["key"])
    write_private(path, key + "\n")
    return key


async def _is_taken(client: httpx.AsyncClient, base_url: str, key: str) -> bool:
    answer = await client.get(f"{base_url}/models", headers={"Authorization": f"Bearer {key}"})
    return answer.status_code == httpx.codes.OK


async def _ask(
    client: httpx.AsyncClient, method: str, url: str, headers: dict[str, str], body: dict[str, Any]
) -> dict[str, Any]:
    answer = await client.request(method, url, headers=headers, json=body)
    if not answer.is_success:
        raise PeerError(f"the gateway answered {answer.status_code} to {method} {url}: {answer.text[:500]}")
    held = answer.json()
    if not isinstance(held, dict):
        raise PeerError(f"the gateway's answer to {method} {url} is no object")
    return held
