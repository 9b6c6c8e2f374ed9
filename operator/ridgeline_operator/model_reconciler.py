"""One Model: how many pools name it, and whether its shape is known. Wakes those pools."""

from collections.abc import Callable
from datetime import UTC, datetime

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.resources.kinds import API_VERSION

from ridgeline_operator.api import KubeApi, path_of
from ridgeline_operator.conditions import Condition, ConditionStatus, merge_conditions
from ridgeline_operator.leader import Leader
from ridgeline_operator.render.facts import Manifest
from ridgeline_operator.work_queue import Key


class ModelReconciler:
    def __init__(self, api: KubeApi, leader: Leader, clock: Clock, wake: Callable[[Key], None]) -> None:
        self._api = api
        self._leader = leader
        self._clock = clock
        self._wake = wake

    async def reconcile(self, key: Key) -> float | None:
        """Pools that name it are looked at anew: a changed Model, or one that came, may change their verdict."""
        for pool in await self._pools(key):
            self._wake(Key("WorkerPool", pool["metadata"]["namespace"], pool["metadata"]["name"]))
        return await self.tell(key)

    async def tell(self, key: Key) -> float | None:
        """Its status alone: one of its pools has changed."""
        model = await self._api.get(path_of(API_VERSION, "Model", key.namespace, key.name))
        if model is not None and "deletionTimestamp" not in model["metadata"]:
            await self._tell(model, await self._pools(key))
        return None

    async def _pools(self, key: Key) -> list[Manifest]:
        pools = await self._api.items(API_VERSION, "WorkerPool", "")
        return [pool for pool in pools if _names(pool, key.namespace, key.name)]

    async def _tell(self, model: Manifest, pools: list[Manifest]) -> None:
        before, metadata = model.get("status", {}), model["metadata"]
        generation = metadata["generation"]
        known = "config" in before or "catalogueId" in model["spec"]
        serving = [pool for pool in pools if pool.get("status", {}).get("readyReplicas")]
        if not known:
            told = ("ShapeUnknown", "set catalogueId, or wait until the weights are verified")
        elif serving:
            told = ("Served", f"{len(serving)} of {len(pools)} pools serve it")
        else:
            told = ("NoPoolServes", f"none of its {len(pools)} pools serves: see kubectl get workerpools")
        status = ConditionStatus.TRUE if told[0] == "Served" else ConditionStatus.FALSE
        ready = Condition("Ready", status, *told, generation)
        held = [Condition.from_object(each) for each in before.get("conditions", ())]
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        ours = {
            "observedGeneration": generation,
            "pools": len(pools),
            "conditions": [each.to_object() for each in merge_conditions(held, [ready], now)],
        }
        if {name: before.get(name) for name in ours} == ours:
            return
        self._leader.check()
        manifest = {
            "apiVersion": API_VERSION,
            "kind": "Model",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "status": ours,
        }
        await self._api.apply(
            manifest, resource_version=metadata["resourceVersion"], subresource="/status", force=True
        )


def _names(pool: Manifest, namespace: str, name: str) -> bool:
    reference = pool["spec"]["modelRef"]
    return bool(
        reference["name"] == name and reference.get("namespace", pool["metadata"]["namespace"]) == namespace
    )
