"""Which models and workers exist, as the router last told. No I/O."""

import asyncio
from dataclasses import dataclass

from ridgeline_contracts.errors import NotFound, PeerError
from ridgeline_contracts.ids import ModelName, WorkerId
from ridgeline_contracts.proto import router_pb2, worker_pb2

_SERVING = (router_pb2.WORKER_STATE_READY, router_pb2.WORKER_STATE_DRAINING)
_RETRY_MS = 1000


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A variant that is or was served under a model's name. Equal bytes, equal variant."""

    variant: worker_pb2.Variant
    first_seen_wall_ms: float
    tokenizer_files: dict[str, str]
    """sha256 by file name."""


class WorkerDirectory:
    """Holds the last WorkerSet, and every model that was ever served: a model whose workers restart still exists."""

    def __init__(self) -> None:
        self._workers: dict[WorkerId, router_pb2.WorkerInfo] = {}
        self._models: dict[ModelName, KnownModel] = {}
        self._heard = False
        self._changed = asyncio.Event()

    @property
    def workers(self) -> list[router_pb2.WorkerInfo]:
        return list(self._workers.values())

    @property
    def ready_workers(self) -> int:
        return sum(info.state == router_pb2.WORKER_STATE_READY for info in self._workers.values())

    def update(self, workers: router_pb2.WorkerSet, *, wall_ms: float) -> None:
        """Replaces what is known of workers."""
        self._heard = True
        self._workers = {WorkerId(info.worker_id): info for info in workers.workers}
        for model, info, variant in self._most_served():
            known = self._models.get(model)
            first_seen = wall_ms if known is None else known.first_seen_wall_ms
            self._models[model] = KnownModel(variant, first_seen, dict(info.tokenizer_files))
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Waits until the next update."""
        await self._changed.wait()

    def models(self) -> dict[ModelName, KnownModel]:
        return dict(self._models)

    def model(self, name: ModelName) -> KnownModel:
        """Raises NotFound for an unknown model, PeerError while nothing is known yet."""
        known = self._models.get(name)
        if known is not None:
            return known
        starting = any(not info.variants for info in self._workers.values())
        if not self._heard or starting:
            raise PeerError(
                "no worker has said yet which models it serves: retry soon", retry_after_ms=_RETRY_MS
            )
        raise NotFound(
            f"the model {name!r} does not exist: GET /v1/models lists those that do", param="model"
        )

    def serving(self, variant: worker_pb2.Variant) -> list[WorkerId]:
        """Ready workers of a variant."""
        return [
            worker
            for worker, info in self._workers.items()
            if info.state == router_pb2.WORKER_STATE_READY and variant in info.variants
        ]

    def _most_served(self) -> list[tuple[ModelName, router_pb2.WorkerInfo, worker_pb2.Variant]]:
        """For each model that is served now, the variant that most workers have (ties: the least by its bytes)."""
        votes: dict[str, dict[bytes, list[tuple[router_pb2.WorkerInfo, worker_pb2.Variant]]]] = {}
        for info in self._workers.values():
            if info.state in _SERVING:
                for variant in info.variants:
                    by_bytes = votes.setdefault(variant.model, {})
                    by_bytes.setdefault(variant.SerializeToString(deterministic=True), []).append(
                        (info, variant)
                    )
        chosen = []
        for model, by_bytes in votes.items():
            _, entries = min(by_bytes.items(), key=lambda item: (-len(item[1]), item[0]))
            chosen.append((ModelName(model), *entries[0]))
        return chosen
