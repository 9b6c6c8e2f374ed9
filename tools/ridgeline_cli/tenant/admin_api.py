"""The admin API of a running gateway, as the tenant commands call it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ridgeline_contracts.errors import (
    CallerError,
    Conflict,
    InvalidRequest,
    NotAuthenticated,
    NotFound,
    PeerError,
    RidgelineError,
    SettingsError,
)

from ridgeline_cli.context import CliContext
from ridgeline_cli.up.command import default_data_dir
from ridgeline_cli.up.ready_file import DEFAULT_NAME, read_ready

_TIMEOUT_S = 30.0
_ERRORS: Mapping[int, type[CallerError]] = {
    400: InvalidRequest,
    401: NotAuthenticated,
    404: NotFound,
    409: Conflict,
}


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Where the admin port is, and what opens it."""

    url: str
    key: str = field(repr=False)


def find_admin(
    context: CliContext, *, admin_url: str | None, admin_key_file: Path | None, ready_file: Path | None
) -> AdminAddress:
    """From the flags, else from a ready file. Raises SettingsError for half a pair, NotFound where nothing runs."""
    if admin_url is None:
        ready = read_ready(ready_file or default_data_dir(context) / DEFAULT_NAME)
        return AdminAddress(ready.admin_url, ready.admin_key)
    key = context.environ.get("RIDGELINE_ADMIN_KEY")
    if admin_key_file is not None:
        try:
            key = admin_key_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SettingsError(
                f"--admin-key-file {admin_key_file} cannot be read ({error.strerror})", param="admin_key_file"
            ) from error
    if not key:
        raise SettingsError(
            "--admin-url needs a key: set RIDGELINE_ADMIN_KEY, or give --admin-key-file",
            param="admin_key_file",
        )
    return AdminAddress(admin_url.rstrip("/"), key)


class AdminApi:
    """Calls that return the reply's JSON. They raise the error that the gateway answered with, or PeerError."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._ask("GET", path, params=given)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._ask(method, path, json=body)

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        try:
            reply = self._client.request(method, path, **content)
        except httpx.HTTPError as error:
            raise PeerError(
                f"the admin API at {self._client.base_url} does not answer ({type(error).__name__}): is it running?"
            ) from error
        if reply.is_success:
            return reply.json() if reply.content else None
        raise _error(reply)


def open_admin(address: AdminAddress, *, transport: httpx.BaseTransport | None = None) -> httpx.Client:
    """A client of the admin port; a proxy of the environment is passed by."""
    headers = {"Authorization": f"Bearer {address.key}"}
    return httpx.Client(
        base_url=address.url, headers=headers, timeout=_TIMEOUT_S, trust_env=False, transport=transport
    )


def _error(reply: httpx.Response) -> RidgelineError:
    try:
        held = reply.json()["error"]
        message, param = str(held["message"]), held.get("param")
    except (ValueError, KeyError, TypeError):
        return PeerError(f"the admin API answered {reply.status_code}: {reply.text[:200]}")
    found = _ERRORS.get(reply.status_code)
    return PeerError(message) if found is None else found(message, param=param)
