"""A pool's status: how many replicas serve, and if not all, why not. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.exits import GPU_FAULT

from ridgeline_operator.conditions import Condition, ConditionStatus
from ridgeline_operator.render.facts import GROUP_LABEL, Manifest, PoolFacts

_IMAGE_REASONS = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")


@dataclass(frozen=True, slots=True)
class Replicas:
    there: int
    ready: int


def count_replicas(facts: PoolFacts, pods: Sequence[Manifest]) -> Replicas:
    """Pods that are not on their way out; a group serves when all its ranks are ready."""
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    if not facts.grouped:
        return Replicas(len(alive), sum(map(pod_ready, alive)))
    groups: dict[str, list[Manifest]] = {}
    for pod in alive:
        groups.setdefault(pod["metadata"]["labels"].get(GROUP_LABEL, ""), []).append(pod)
    nodes = facts.spec.layout.nodes
    whole = [ranks for ranks in groups.values() if len(ranks) == nodes and all(map(pod_ready, ranks))]
    return Replicas(len(groups), len(whole))


def pod_ready(pod: Manifest) -> bool:
    return _condition(pod, "Ready").get("status") == "True"


def ready_condition(
    facts: PoolFacts, pods: Sequence[Manifest], workloads: Sequence[Manifest], *, generation: int
) -> Condition:
    """Ready, with the first cause that is found; a cause comes before what it causes."""
    counted, wanted = count_replicas(facts, pods), facts.spec.replicas
    told = f"{counted.ready} of {wanted} replicas serve"
    if counted.ready >= wanted:
        reason = "AllServing" if wanted else "ScaledToZero"
        return Condition("Ready", ConditionStatus.TRUE, reason, told, generation)
    reason, cause = _cause(facts, pods, workloads)
    return Condition("Ready", ConditionStatus.FALSE, reason, f"{told}: {cause}", generation)


def _cause(facts: PoolFacts, pods: Sequence[Manifest], workloads: Sequence[Manifest]) -> tuple[str, str]:
    for pod in pods:
        found = _container_cause(pod)
        if found is not None:
            return found
    failed = [_condition(each, "ReplicaFailure") for each in workloads]
    for condition in failed:
        if condition.get("status") == "True":
            return "PodsRefused", f"{condition.get('message', '')}; raise the quota, or lower replicas"
    unscheduled = [pod for pod in pods if _condition(pod, "PodScheduled").get("reason") == "Unschedulable"]
    if unscheduled:
        told = _condition(unscheduled[0], "PodScheduled").get("message", "")
        if "persistentvolumeclaim" in told:
            return (
                "VolumeMissing",
                f"{told} Create the claim that the Model's source.pvc names in this namespace",
            )
        gpus = facts.spec.layout.gpus_per_node
        return (
            "NoNodeFree",
            f"{len(unscheduled)} pods of class {facts.spec.gpu_class} ({gpus} GPUs each) have no node: {told} "
            "Add nodes of the class, or lower replicas",
        )
    if not pods:
        return "Starting", "no pod exists yet"
    return "Starting", "pods load and compile; see their logs"


def _container_cause(pod: Manifest) -> tuple[str, str] | None:
    name, node = pod["metadata"]["name"], pod.get("spec", {}).get("nodeName", "no node")
    for status in pod.get("status", {}).get("containerStatuses", ()):
        waiting = status.get("state", {}).get("waiting", {})
        ended = exit_of(status)
        if ended == GPU_FAULT:
            return (
                "GpuFault",
                f"pod {name} ended with a GPU fault on node {node}: it is replaced; check the node's GPUs",
            )
        if waiting.get("reason") in _IMAGE_REASONS:
            return (
                "ImageUnavailable",
                f"image {status.get('image')} of pod {name}: {waiting.get('message', waiting['reason'])}; check "
                "its name, and the pull secret",
            )
        if waiting.get("reason") == "CrashLoopBackOff":
            return (
                "CrashLooping",
                f"pod {name} on {node} ended {status.get('restartCount', 0)} times, last with exit code {ended}; "
                f"see kubectl logs --previous {name}",
            )
    return None


def exit_of(status: Any) -> int | None:
    """Exit code of a container that ended, now or before its restart."""
    for held in (status.get("state", {}), status.get("lastState", {})):
        if "terminated" in held:
            return int(held["terminated"]["exitCode"])
    return None


def _condition(held: Manifest, kind: str) -> dict[str, Any]:
    conditions = held.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == kind), {})
