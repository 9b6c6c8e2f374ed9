"""Groups of pods that serve together: which are recreated whole, and which wait. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ridgeline_operator.pool_status import pod_ready
from ridgeline_operator.render.facts import GROUP_LABEL, Manifest

PARTIAL_LIMIT_S = 60.0
"""A group of which only some pods found a node gives its GPUs back after this."""

SAME_START_S = 5.0
"""Ranks that were made within it started together: their StatefulSet makes all at once."""


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    recreate: tuple[Manifest, ...]
    """Pods to delete: their StatefulSet makes the whole group anew."""
    pause: frozenset[int]
    """Groups that should hold no pods now."""
    look_again_s: float | None
    """When something here changes by time alone."""


def plan_groups(
    sets: Sequence[Manifest],
    pods: Sequence[Manifest],
    *,
    nodes: int,
    paused: Mapping[int, float],
    now_s: float,
) -> GroupsPlan:
    """`paused`: groups that wait for their next try, and when that is (Unix seconds).

    A group of which a rank failed or was lost is recreated; of outdated groups that are whole, one at a time, and only
    while all groups serve.
    """
    by_group: dict[int, list[Manifest]] = {}
    for pod in pods:
        by_group.setdefault(int(pod["metadata"]["labels"][GROUP_LABEL]), []).append(pod)
    recreate: list[Manifest] = []
    pause = {group for group, until_s in paused.items() if until_s > now_s}
    waits = [until_s - now_s for group, until_s in paused.items() if group in pause]
    outdated: list[int] = []
    serving = 0
    for held in sets:
        group = int(held["metadata"]["name"].rpartition("-g")[2])
        ranks = by_group.get(group, [])
        leaving = [pod for pod in ranks if "deletionTimestamp" in pod["metadata"]]
        alive = [pod for pod in ranks if "deletionTimestamp" not in pod["metadata"]]
        whole = len(alive) == nodes and all(map(pod_ready, alive))
        serving += whole
        if _broken(alive, leaving):
            recreate += alive
            continue
        if alive and any(_outdated(pod, held) for pod in alive):
            outdated.append(group)
        pending = [pod for pod in alive if not pod.get("spec", {}).get("nodeName")]
        if pending and group not in pause:
            age_s = now_s - min(_created_s(pod) for pod in pending)
            if age_s >= PARTIAL_LIMIT_S and len(pending) < len(alive):
                pause.add(group)
            elif len(pending) < len(alive):
                waits.append(PARTIAL_LIMIT_S - age_s)
    if outdated and not recreate:
        not_whole = [group for group in outdated if not _whole(by_group[group], nodes)]
        chosen = not_whole or (outdated[:1] if serving == len(sets) else [])
        recreate += [pod for group in chosen for pod in by_group[group]]
    return GroupsPlan(tuple(recreate), frozenset(pause), max(0.5, min(waits)) if waits else None)


def _broken(alive: Sequence[Manifest], leaving: Sequence[Manifest]) -> bool:
    """A rank is lost, or was and came back alone: those that ran with it cannot go on."""
    if not alive:
        return False
    created = [_created_s(pod) for pod in alive]
    if leaving and min(created) <= max(_created_s(pod) for pod in leaving):
        return True
    failed = any(pod.get("status", {}).get("phase") == "Failed" for pod in alive)
    return failed or max(created) - min(created) > SAME_START_S


def _whole(pods: Sequence[Manifest], nodes: int) -> bool:
    return len(pods) == nodes and all(map(pod_ready, pods))


def _outdated(pod: Manifest, held: Manifest) -> bool:
    update = held.get("status", {}).get("updateRevision")
    return update is not None and pod["metadata"]["labels"].get("controller-revision-hash") != update


def _created_s(pod: Manifest) -> float:
    text = str(pod["metadata"]["creationTimestamp"])
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
