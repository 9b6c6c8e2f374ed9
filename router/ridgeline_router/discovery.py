"""Which workers there are. A discovery tells ids and addresses; everything else the workers tell
themselves."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.ids import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    worker_id: WorkerId
    address: str
    """host:port of its gRPC contract."""


class Discovery(Protocol):
    def follow(self) -> AsyncGenerator[tuple[WorkerAddress, ...]]:
        """The whole set at once, and again whenever it has changed, for ever."""
        ...


@dataclass(frozen=True, slots=True)
class StaticDiscovery:
    """Workers that the command line names."""

    workers: tuple[WorkerAddress, ...]

    async def follow(self) -> AsyncGenerator[tuple[WorkerAddress, ...]]:
        yield self.workers
        await asyncio.Event().wait()


def parse_worker(text: str) -> WorkerAddress:
    """`ID=HOST:PORT`. Raises SettingsError that shows the form."""
    worker_id, equals, address = text.partition("=")
    host, colon, port = address.rpartition(":")
    if not (worker_id and equals and host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise SettingsError(f"--worker {text!r} is not ID=HOST:PORT, such as w0=127.0.0.1:8200")
    return WorkerAddress(WorkerId(worker_id), address)


def static_discovery(texts: list[str]) -> StaticDiscovery:
    """Raises SettingsError for a bad or a repeated worker."""
    workers = tuple(parse_worker(text) for text in texts)
    ids = [each.worker_id for each in workers]
    repeated = sorted({each for each in ids if ids.count(each) > 1})
    if repeated:
        raise SettingsError(f"--worker names {', '.join(repeated)} twice: each worker needs an id of its own")
    return StaticDiscovery(workers)
