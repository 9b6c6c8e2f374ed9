"""One WorkerPool: read all of it, plan, apply, tell. The shell around the pure parts."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import CallerError, InvalidRequest
from ridgeline_contracts.exits import GPU_FAULT
from ridgeline_contracts.resources.kinds import API_VERSION
from ridgeline_contracts.resources.model import ModelSpecResource, ModelStatus
from ridgeline_contracts.resources.shapes import from_object, to_object
from ridgeline_contracts.resources.worker_pool import WorkerPoolSpec

from ridgeline_operator.admission import Peer, Refused, examine
from ridgeline_operator.api import FieldConflict, KubeApi, path_of
from ridgeline_operator.api import Refused as ApiRefused
from ridgeline_operator.conditions import Condition, ConditionStatus, merge_conditions
from ridgeline_operator.groups import plan_groups
from ridgeline_operator.leader import Leader
from ridgeline_operator.plan import Apply, plan
from ridgeline_operator.pool_status import count_replicas, exit_of, ready_condition
from ridgeline_operator.render.facts import MANAGED_BY, MANAGED_LABEL, POOL_LABEL, Manifest, PoolFacts
from ridgeline_operator.render.objects import pool_objects
from ridgeline_operator.revisions import Accepted, accepted_of, newest, revision_body
from ridgeline_operator.settings import OperatorSettings
from ridgeline_operator.work_queue import Key

CHILD_KINDS = (
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("policy/v1", "PodDisruptionBudget"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "ControllerRevision"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
)
_log = logging.getLogger(__name__)
_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 600.0
PAUSE_ANNOTATION = "ridgeline.dev/paused"


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the API server held when it was asked."""

    pool: Manifest
    children: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]

    def of(self, *kinds: str) -> list[Manifest]:
        return [each for each in self.children if each["kind"] in kinds]


@dataclass(frozen=True, slots=True)
class Judged:
    """What to run, if anything, and what to say of the spec."""

    accepted: Accepted | None
    condition: Condition


class PoolReconciler:
    def __init__(self, api: KubeApi, leader: Leader, settings: OperatorSettings, clock: Clock) -> None:
        self._api = api
        self._leader = leader
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until it must be looked at again whatever happens; None: at the next event or resync.

        Raises PeerError, Stale and LeadershipLost; what the pool's owner can mend becomes a condition.
        """
        observed = await self._read(key)
        if observed is None:
            return None
        judged = await self._judge(observed.pool)
        accepted = judged.accepted or _last_accepted(observed)
        if accepted is None:
            await self._tell(observed, [judged.condition, _not_ready(judged.condition)], {})
            return None
        return await self._run(observed, accepted, judged.condition)

    async def _read(self, key: Key) -> Observed | None:
        pool = await self._api.get(path_of(API_VERSION, "WorkerPool", key.namespace, key.name))
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return None
        selector = f"{MANAGED_LABEL}={MANAGED_BY},{POOL_LABEL}={key.name}"
        found: list[Manifest] = []
        for api_version, kind in CHILD_KINDS:
            found += await self._api.items(api_version, kind, key.namespace, selector)
        uid = pool["metadata"]["uid"]
        children = tuple(each for each in found if _owned(each, uid))
        pods = await self._api.items("v1", "Pod", key.namespace, selector)
        return Observed(pool, children, tuple(pods))

    async def _judge(self, pool: Manifest) -> Judged:
        generation = pool["metadata"]["generation"]

        def no(reason: str, message: str) -> Judged:
            return Judged(None, Condition("Accepted", ConditionStatus.FALSE, reason, message, generation))

        try:
            spec: WorkerPoolSpec = from_object(WorkerPoolSpec, pool["spec"])
        except InvalidRequest as error:
            return no("SpecUnreadable", error.message)
        gpu_class = self._settings.gpu_classes.get(spec.gpu_class)
        if gpu_class is None:
            known = " ".join(sorted(self._settings.gpu_classes))
            return no("UnknownGpuClass", f"gpuClass {spec.gpu_class} is not among the chart's: {known}")
        namespace = spec.model_ref.namespace or pool["metadata"]["namespace"]
        name = spec.model_ref.name
        model = await self._api.get(path_of(API_VERSION, "Model", namespace, name))
        if model is None:
            return no("ModelMissing", f"there is no Model {namespace}/{name}: create it, or mend modelRef")
        try:
            model_spec: ModelSpecResource = from_object(ModelSpecResource, model["spec"])
            status: ModelStatus = from_object(ModelStatus, model.get("status", {}), path="status")
        except InvalidRequest as error:
            return no("ModelUnreadable", f"Model {namespace}/{name}: {error.message}")
        peers = await self._peers(pool, model_spec)
        try:
            found = examine(spec, model_spec, status, gpu_class, model_name=name, peers=peers)
        except CallerError as error:
            # What the resources of an older CRD let through, or a format that the class lacks.
            return no("CannotBeJudged", error.message)
        if isinstance(found, Refused):
            return no(found.reason, found.message)
        told = f"weights {found.format.weights} on {spec.gpu_class}"
        if found.capacity_per_s is not None:
            told += f"; one replica is {found.capacity_per_s:.3f} capacity units"
        condition = Condition("Accepted", ConditionStatus.TRUE, "Fits", told, generation)
        return Judged(accepted_of(spec, model_spec.source, model_spec.revision, found), condition)

    async def _peers(self, pool: Manifest, model: ModelSpecResource) -> Sequence[Peer]:
        """Other pools of this namespace with the same Model: the halves of a prefill and decode pair."""
        if pool["spec"].get("role", "unified") == "unified":
            return ()
        formats = {each.generation: each.weights.value for each in model.formats}
        found = []
        for other in await self._api.items(API_VERSION, "WorkerPool", pool["metadata"]["namespace"]):
            try:
                spec: WorkerPoolSpec = from_object(WorkerPoolSpec, other["spec"])
            except InvalidRequest:
                # Told in that pool's own conditions; it runs nothing that could disagree.
                continue
            same = other["spec"]["modelRef"] == pool["spec"]["modelRef"]
            gpu_class = self._settings.gpu_classes.get(spec.gpu_class)
            if same and gpu_class is not None and other["metadata"]["uid"] != pool["metadata"]["uid"]:
                weights = formats.get(gpu_class.generation)
                if weights is not None:
                    found.append(Peer(other["metadata"]["name"], spec.role, weights))
        return found

    async def _run(self, observed: Observed, accepted: Accepted, judged: Condition) -> float | None:
        facts = self._facts(observed.pool, accepted)
        look_again_s = None
        if facts is None:
            await self._tell(observed, [judged, _not_ready(judged)], {})
            return None
        pauses: dict[int, tuple[float, int]] = {}
        if facts.grouped:
            facts, pauses, look_again_s = await self._groups(facts, observed)
        objects = pool_objects(facts)
        objects = [_with_pause(each, pauses) for each in objects]
        name, body = revision_body(facts.name, accepted, observed.of("ControllerRevision"))
        objects.insert(0, facts.manifest("apps/v1", "ControllerRevision", name, body))
        applied = await self._apply(objects, observed, judged.observed_generation)
        await self._move_faulty_pods(observed)
        generation = judged.observed_generation
        ready = ready_condition(
            facts, observed.pods, observed.of("Deployment", "StatefulSet"), generation=generation
        )
        if applied.status is ConditionStatus.FALSE:
            ready = replace(ready, reason=applied.reason, message=applied.message)
        await self._tell(observed, [judged, applied, ready], _figures(facts, observed, name))
        return look_again_s

    def _facts(self, pool: Manifest, accepted: Accepted) -> PoolFacts | None:
        gpu_class = self._settings.gpu_classes.get(accepted.pool.gpu_class)
        if gpu_class is None:
            return None
        metadata = pool["metadata"]
        return PoolFacts(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            spec=accepted.pool,
            model_name=accepted.pool.model_ref.name,
            source=accepted.source,
            model_revision=accepted.model_revision,
            fits=accepted.fits,
            gpu_class=gpu_class,
            release_namespace=self._settings.release_namespace,
            monitoring_namespace_labels=self._settings.monitoring_namespace_labels,
        )

    async def _groups(
        self, facts: PoolFacts, observed: Observed
    ) -> tuple[PoolFacts, dict[int, tuple[float, int]], float | None]:
        sets = observed.of("StatefulSet")
        held = {_group_of(each): _pause_of(each) for each in sets}
        now_s = self._clock.wall_ms() / 1000
        planned = plan_groups(
            sets,
            observed.pods,
            nodes=facts.spec.layout.nodes,
            paused={group: until_s for group, (until_s, _) in held.items()},
            now_s=now_s,
        )
        for pod in planned.recreate:
            if "deletionTimestamp" not in pod["metadata"]:
                self._leader.check()
                ref = ("v1", "Pod", facts.namespace, pod["metadata"]["name"])
                await self._api.delete(ref, uid=pod["metadata"]["uid"])
        pauses: dict[int, tuple[float, int]] = {}
        for group, (until_s, tries) in held.items():
            if group in planned.pause and until_s <= now_s:
                wait_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries, 10))
                pauses[group] = (now_s + wait_s, tries + 1)
            elif tries:
                pauses[group] = (until_s, tries)
        again = planned.look_again_s
        if planned.pause and again is None:
            again = _FIRST_PAUSE_S
        return replace(facts, paused_groups=planned.pause), pauses, again

    async def _apply(self, objects: Sequence[Manifest], observed: Observed, generation: int) -> Condition:
        """Applied: False names what the API server refuses; the rest is applied all the same."""
        trouble: list[tuple[str, str]] = []
        for action in plan(objects, observed.children):
            self._leader.check()
            try:
                if isinstance(action, Apply):
                    await self._api.apply(action.manifest, resource_version=action.resource_version)
                else:
                    await self._api.delete(
                        action.ref, uid=action.uid, resource_version=action.resource_version
                    )
            except FieldConflict as error:
                trouble.append(("FieldOwnedByOther", f"{_named(action)}: {error.message}"))
            except ApiRefused as error:
                trouble.append(("RefusedByApiServer", f"{_named(action)}: {error.message}"))
        if not trouble:
            return Condition(
                "Applied", ConditionStatus.TRUE, "AsPlanned", "all objects are as planned", generation
            )
        reason, message = trouble[0]
        return Condition("Applied", ConditionStatus.FALSE, reason, message, generation)

    async def _move_faulty_pods(self, observed: Observed) -> None:
        """A pod whose GPU failed twice goes; the next one is scheduled anew."""
        for pod in observed.pods:
            metadata = pod["metadata"]
            ended = [exit_of(each) for each in pod.get("status", {}).get("containerStatuses", ())]
            if GPU_FAULT in ended and "deletionTimestamp" not in metadata:
                self._leader.check()
                await self._api.delete(
                    ("v1", "Pod", metadata["namespace"], metadata["name"]), uid=metadata["uid"]
                )

    async def _tell(self, observed: Observed, new: Sequence[Condition], figures: dict[str, Any]) -> None:
        """Writes the status where it differs."""
        pool = observed.pool
        before = pool.get("status", {})
        held = [Condition.from_object(each) for each in before.get("conditions", ())]
        now = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)
        status = {
            **figures,
            "observedGeneration": pool["metadata"]["generation"],
            "conditions": [each.to_object() for each in merge_conditions(held, new, now)],
        }
        if status == before:
            return
        self._leader.check()
        metadata = pool["metadata"]
        manifest = {
            "apiVersion": API_VERSION,
            "kind": "WorkerPool",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "status": status,
        }
        await self._api.apply(
            manifest, resource_version=metadata["resourceVersion"], subresource="/status", force=True
        )


def _last_accepted(observed: Observed) -> Accepted | None:
    """None too where another version wrote it in a way that this one cannot read: what runs is then left alone."""
    try:
        return newest(observed.of("ControllerRevision"))
    except InvalidRequest as error:
        _log.warning("the last accepted spec of %s: %s", observed.pool["metadata"]["name"], error)
        return None


def _figures(facts: PoolFacts, observed: Observed, revision: str) -> dict[str, Any]:
    counted, layout = count_replicas(facts, observed.pods), facts.spec.layout
    figures: dict[str, Any] = {
        "replicas": counted.there,
        "readyReplicas": counted.ready,
        "selector": facts.replica_selector,
        "gpus": facts.spec.replicas * layout.nodes * layout.gpus_per_node,
        "model": f"{facts.spec.model_ref.namespace or facts.namespace}/{facts.model_name}",
        "weightsFormat": facts.fits.format.weights.value,
        "acceptedRevision": revision,
        "derivations": to_object(facts.fits.derivations),
    }
    capacity = facts.fits.capacity_per_s
    if capacity is not None:
        figures["capacityPerReplica"] = f"{capacity:.3f}"
        figures["capacityReady"] = f"{capacity * counted.ready:.3f}"
    return figures


def _not_ready(judged: Condition) -> Condition:
    return Condition(
        "Ready", ConditionStatus.FALSE, judged.reason, judged.message, judged.observed_generation
    )


def _owned(child: Manifest, uid: str) -> bool:
    return any(each["uid"] == uid for each in child["metadata"].get("ownerReferences", ()))


def _named(action: Any) -> str:
    if isinstance(action, Apply):
        return f"{action.manifest['kind']} {action.manifest['metadata']['name']}"
    return f"{action.ref[1]} {action.ref[3]}"


def _group_of(held: Manifest) -> int:
    return int(held["metadata"]["name"].rpartition("-g")[2])


def _pause_of(held: Manifest) -> tuple[float, int]:
    """(until, tries), from the StatefulSet's own annotation: a new leader goes on where the old one was."""
    text = held["metadata"].get("annotations", {}).get(PAUSE_ANNOTATION)
    if text is None:
        return 0.0, 0
    until_s, tries = json.loads(text)
    return float(until_s), int(tries)


def _with_pause(manifest: Manifest, pauses: dict[int, tuple[float, int]]) -> Manifest:
    if manifest["kind"] != "StatefulSet" or (group := _group_of(manifest)) not in pauses:
        return manifest
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), PAUSE_ANNOTATION: json.dumps(pauses[group])}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
