"""The Kubernetes API as the operator uses it: get, list, server-side apply, delete. No policy.

ApiError
|-- Gone            404
|-- Stale           409: somebody wrote since we read; read again
|-- FieldConflict   409: another manager owns a field that we set
`-- Refused         422, 403: the API server does not take what we ask for
A failed connection or a 5xx is PeerError.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx
from ridgeline_contracts.errors import PeerError, RidgelineError

from ridgeline_operator.credentials import ApiAccess
from ridgeline_operator.plan import Ref
from ridgeline_operator.render.facts import MANAGED_BY, Manifest

_TIMEOUT_S = 20.0
_PAGE = 500
_PLURALS: Mapping[str, str] = {"NetworkPolicy": "networkpolicies"}


class ApiError(RidgelineError):
    """The API server answered, and not with what was asked for."""

    code: ClassVar[str] = "kubernetes_api"


class Gone(ApiError):
    pass


class Stale(ApiError):
    pass


class FieldConflict(ApiError):
    pass


class Refused(ApiError):
    pass


def path_of(api_version: str, kind: str, namespace: str, name: str = "") -> str:
    """Of an object, or of all of a namespace (of all namespaces where it is empty)."""
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    where = f"/namespaces/{namespace}" if namespace else ""
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    return f"{root}{where}/{plural}" + (f"/{name}" if name else "")


class KubeApi:
    """One client for all; its calls may run at the same time."""

    def __init__(self, access: ApiAccess, *, identity: str) -> None:
        self._access = access
        self._client = httpx.AsyncClient(
            base_url=access.url,
            verify=access.tls,
            timeout=_TIMEOUT_S,
            cert=access.client_certificate,
            # The audit log tells by it which of several operators wrote.
            headers={"User-Agent": f"{MANAGED_BY}/{identity}"},
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Manifest | None:
        """None where there is none."""
        try:
            return await self.ask("GET", path)
        except Gone:
            return None

    async def items(self, api_version: str, kind: str, namespace: str, selector: str = "") -> list[Manifest]:
        """All, in pages. Each gets the apiVersion and kind that lists leave out."""
        query = {"limit": str(_PAGE)} | ({"labelSelector": selector} if selector else {})
        found: list[Manifest] = []
        while True:
            page = await self.ask("GET", path_of(api_version, kind, namespace), query=query)
            found += [{**each, "apiVersion": api_version, "kind": kind} for each in page["items"]]
            token = page["metadata"].get("continue")
            if not token:
                return found
            query["continue"] = token

    async def apply(
        self, manifest: Manifest, *, resource_version: str | None, subresource: str = "", force: bool = False
    ) -> None:
        """Server-side apply as MANAGED_BY, against what was read."""
        metadata = manifest["metadata"]
        if resource_version is not None:
            manifest = {**manifest, "metadata": {**metadata, "resourceVersion": resource_version}}
        path = path_of(
            manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"]
        )
        await self.ask(
            "PATCH",
            path + subresource,
            query={"fieldManager": MANAGED_BY, "force": "true" if force else "false"},
            body=manifest,
            content_type="application/apply-patch+yaml",
        )

    async def delete(self, ref: Ref, *, uid: str, resource_version: str | None = None) -> None:
        """That very object, with everything below it, in the background. One that is gone is no error."""
        preconditions = {"uid": uid} | (
            {} if resource_version is None else {"resourceVersion": resource_version}
        )
        body = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            await self.ask("DELETE", path_of(*ref), body=body)
        except Gone:
            return

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Manifest:
        """Raises ApiError or PeerError."""
        headers = {**self._access.headers(), "Content-Type": content_type}
        content = None if body is None else json.dumps(body)
        try:
            answer = await self._client.request(
                method, path, params=dict(query or {}), content=content, headers=headers
            )
        except httpx.HTTPError as error:
            raise PeerError(f"the API server does not answer: {error!r}") from error
        if answer.is_success:
            found: Manifest = answer.json()
            return found
        raise _error(answer, f"{method} {path}")


def _error(answer: httpx.Response, asked: str) -> RidgelineError:
    try:
        told = str(answer.json().get("message", ""))
    except ValueError:
        told = answer.text[:200]
    message = f"{asked}: {answer.status_code}: {told}"
    if answer.status_code == 404:
        return Gone(message)
    if answer.status_code == 409:
        return FieldConflict(told) if told.startswith("Apply failed with") else Stale(message)
    if answer.status_code in (400, 403, 422):
        return Refused(message)
    if answer.status_code >= 500 or answer.status_code in (401, 429):
        return PeerError(message)
    return ApiError(message)
