"""The ready file: where a running platform is, with which keys and pids. For `chat`, scripts and tests."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline_contracts.errors import NotFound, SettingsError

from ridgeline_cli.up.private_files import read_private, write_private

DEFAULT_NAME = "ready.json"
"""In the data folder; `--ready-file` writes one more copy elsewhere."""


@dataclass(frozen=True, slots=True)
class Pids:
    gateway: int
    router: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """What the file holds."""

    base_url: str
    """Of the OpenAI API, `/v1` included."""
    api_key: str
    admin_url: str
    admin_key: str
    pids: Pids


def render_ready(ready: Ready) -> str:
    """The file's text: one JSON object."""
    pids = {"gateway": ready.pids.gateway, "router": ready.pids.router, "workers": list(ready.pids.workers)}
    held = {
        "base_url": ready.base_url,
        "api_key": ready.api_key,
        "admin_url": ready.admin_url,
        "admin_key": ready.admin_key,
        "pids": pids,
    }
    return json.dumps(held, indent=2) + "\n"


def write_ready(path: Path, ready: Ready) -> None:
    """Writes it whole, with mode 0600. Raises SettingsError where that is not possible."""
    write_private(path, render_ready(ready))


def read_ready(path: Path) -> Ready:
    """Raises NotFound where nothing runs (no file), SettingsError for a file of another shape."""
    text = read_private(path)
    if text is None:
        raise NotFound(
            f"no ready file at {path}: start the platform with `ridgeline up`, "
            "or give --base-url and --api-key"
        )
    try:
        held: dict[str, Any] = json.loads(text)
        pids = held["pids"]
        return Ready(
            base_url=str(held["base_url"]),
            api_key=str(held["api_key"]),
            admin_url=str(held["admin_url"]),
            admin_key=str(held["admin_key"]),
            pids=Pids(int(pids["gateway"]), int(pids["router"]), tuple(int(pid) for pid in pids["workers"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path} is no ready file ({error!r}): remove it and start `ridgeline up`"
        ) from error
