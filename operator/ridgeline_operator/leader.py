"""Leadership by a Lease of our own. A leader writes only while it is sure to hold it."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import PeerError

from ridgeline_operator.api import ApiError, Gone, KubeApi, Stale, path_of
from ridgeline_operator.render.facts import Manifest

LEASE_NAME = "ridgeline-operator"
_API = "coordination.k8s.io/v1"


class LeadershipLost(PeerError):
    """The lease ran out, or another took it: this process must end."""


class Leader:
    """Another's lease counts as lost once it has not changed for its whole life on our own clock: clocks of two
    machines are never compared."""

    def __init__(self, api: KubeApi, clock: Clock, *, namespace: str, identity: str, lease_ms: int) -> None:
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._identity = identity
        self._lease_ms = lease_ms
        self._path = path_of(_API, "Lease", namespace, LEASE_NAME)
        self._renewed_ms: float | None = None
        self._seen: tuple[Any, float] | None = None

    @property
    def retry_ms(self) -> float:
        """Between tries, of both leader and candidates."""
        return self._lease_ms / 5

    def check(self) -> None:
        """Before every write. Raises LeadershipLost from a third of the lease's life before it runs out."""
        if self._renewed_ms is None or self._clock.monotonic_ms() > self._renewed_ms + self._lease_ms * 2 / 3:
            raise LeadershipLost(f"{self._identity} no longer holds the lease {self._namespace}/{LEASE_NAME}")

    async def acquire(self) -> None:
        """Returns once this process leads."""
        while True:
            if await self._try():
                return
            await asyncio.sleep(self.retry_ms / 1000)

    async def keep(self) -> None:
        """Renews for ever. Raises LeadershipLost."""
        while True:
            await asyncio.sleep(self.retry_ms / 1000)
            left_s = (self._renewed_ms or 0.0) + self._lease_ms * 2 / 3 - self._clock.monotonic_ms()
            try:
                async with asyncio.timeout(max(0.05, left_s / 1000)):
                    held = await self._try()
            except TimeoutError:
                held = True
            if not held:
                raise LeadershipLost(f"another took the lease {self._namespace}/{LEASE_NAME}")
            self.check()

    async def release(self) -> None:
        """So that a successor need not wait; does nothing for one that does not lead."""
        try:
            self.check()
            lease = await self._api.ask("GET", self._path)
            lease["spec"]["holderIdentity"] = ""
            await self._api.ask("PUT", self._path, body=lease)
        except (ApiError, PeerError):
            return
        finally:
            self._renewed_ms = None

    async def _try(self) -> bool:
        """Whether this process holds the lease now. What cannot be asked changes nothing."""
        asked_ms = self._clock.monotonic_ms()
        try:
            lease = await self._api.get(self._path)
            if lease is None:
                await self._api.ask("POST", path_of(_API, "Lease", self._namespace), body=self._lease(None))
            elif self._free(lease, asked_ms):
                await self._api.ask("PUT", self._path, body=self._lease(lease))
            else:
                return False
        except (Stale, Gone):
            return False
        except (ApiError, PeerError):
            return self._renewed_ms is not None
        self._renewed_ms = asked_ms
        return True

    def _free(self, lease: Manifest, now_ms: float) -> bool:
        spec = lease["spec"]
        holder = spec.get("holderIdentity")
        if holder in (self._identity, "", None):
            return True
        mark = (holder, spec.get("renewTime"), lease["metadata"]["resourceVersion"])
        if self._seen is None or self._seen[0] != mark:
            self._seen = (mark, now_ms)
        life_ms = spec.get("leaseDurationSeconds", self._lease_ms // 1000) * 1000
        return bool(now_ms - self._seen[1] > life_ms)

    def _lease(self, held: Manifest | None) -> Manifest:
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="microseconds")
        spec = dict(held["spec"]) if held else {}
        changes = held is not None and spec.get("holderIdentity") != self._identity
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": -(-self._lease_ms // 1000),
            "renewTime": now.replace("+00:00", "Z"),
            "leaseTransitions": spec.get("leaseTransitions", 0) + (1 if changes else 0),
        }
        metadata = held["metadata"] if held else {"name": LEASE_NAME, "namespace": self._namespace}
        return {"apiVersion": _API, "kind": "Lease", "metadata": metadata, "spec": spec}
