"""What every tenant command does around its calls: find the admin port, print text or JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from ridgeline_contracts.errors import SettingsError

from ridgeline_cli.context import context_of
from ridgeline_cli.tenant.admin_api import AdminApi, find_admin, open_admin

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@contextmanager
def admin_of(
    ctx: typer.Context, admin_url: str | None, admin_key_file: Path | None, ready_file: Path | None
) -> Iterator[AdminApi]:
    """The admin API that the options name. Raises as `find_admin` does."""
    address = find_admin(
        context_of(ctx), admin_url=admin_url, admin_key_file=admin_key_file, ready_file=ready_file
    )
    with open_admin(address) as client:
        yield AdminApi(client)


def print_found(content: Any, lines: list[str], *, as_json: bool) -> None:
    """Lines for people, or the object."""
    text = json.dumps(content, indent=2) if as_json else "\n".join(lines)
    sys.stdout.write(text + "\n")


def seconds_of(text: str, *, param: str) -> float:
    """`90s`, `10m`, `24h`, `7d`. Raises SettingsError for other text."""
    number, unit = text[:-1], text[-1:]
    try:
        return float(number) * _UNITS_S[unit]
    except (ValueError, KeyError) as error:
        raise SettingsError(
            f"--{param} {text!r} is no time: give 90s, 10m, 24h or 7d", param=param
        ) from error
