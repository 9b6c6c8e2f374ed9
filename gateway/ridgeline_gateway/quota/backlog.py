"""Settlements that a lost store has not taken when a gateway ends: a file, read at its next start."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from ridgeline_contracts.errors import SettingsError

from ridgeline_gateway.quota.account import LeaseId
from ridgeline_gateway.quota.limits import Amounts
from ridgeline_gateway.tenant_documents import read_tenant, tenant_document
from ridgeline_gateway.tenants import Tenant

Owed: TypeAlias = tuple[Tenant, LeaseId, Amounts, str]
"""Tenant, lease, charge, ledger entry."""


class Backlog:
    """Lines of JSON at `path`, mode 0600; no file when nothing is owed. Settling twice is harmless."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Owed]:
        """Raises SettingsError for a file that cannot be understood: it holds charges, so it is not thrown away."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        try:
            return [_owed(line) for line in lines]
        except (ValueError, KeyError, TypeError) as error:
            raise SettingsError(
                f"{self._path} holds settlements and cannot be read ({error!r}): move it away, and settle by hand"
            ) from error

    def write(self, owed: Sequence[Owed]) -> None:
        """Replaces the file, whole or not at all."""
        if not owed:
            self._path.unlink(missing_ok=True)
            return
        partial = self._path.with_suffix(".partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            opened.writelines(f"{_line(entry)}\n" for entry in owed)
        partial.replace(self._path)


def _line(owed: Owed) -> str:
    tenant, lease_id, charged, entry = owed
    return json.dumps(
        {"tenant": tenant_document(tenant), "lease": lease_id, "charged": charged, "entry": entry}
    )


def _owed(line: str) -> Owed:
    held = json.loads(line)
    return read_tenant(held["tenant"]), LeaseId(held["lease"]), Amounts(*held["charged"]), str(held["entry"])
