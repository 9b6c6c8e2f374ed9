"""What rendering starts from, and the names and labels that all of it shares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ridgeline_contracts.resources.kinds import API_VERSION, GROUP
from ridgeline_contracts.resources.model import ModelSource
from ridgeline_contracts.resources.worker_pool import WorkerPoolSpec

from ridgeline_operator.admission import Fits
from ridgeline_operator.gpu_classes import GpuClass

Manifest: TypeAlias = dict[str, Any]

MANAGED_BY: Final = "ridgeline-operator"
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
POOL_LABEL: Final = f"{GROUP}/pool"
MODEL_LABEL: Final = f"{GROUP}/model"
ROLE_LABEL: Final = f"{GROUP}/role"
GROUP_LABEL: Final = f"{GROUP}/group"
POD_INDEX_LABEL: Final = "apps.kubernetes.io/pod-index"
HASH_ANNOTATION: Final = f"{GROUP}/rendered"

GRPC_PORT: Final = 8200
STATUS_PORT: Final = 8201


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One accepted pool and all that its objects follow from."""

    name: str
    namespace: str
    uid: str
    spec: WorkerPoolSpec
    model_name: str
    source: ModelSource
    model_revision: str
    fits: Fits
    gpu_class: GpuClass
    release_namespace: str
    monitoring_namespace_labels: Mapping[str, str] = field(default_factory=dict)
    paused_groups: frozenset[int] = frozenset()
    """Groups that hold no pods until their next try."""

    @property
    def grouped(self) -> bool:
        """A replica is several pods."""
        return self.spec.layout.nodes > 1

    @property
    def labels(self) -> dict[str, str]:
        return {
            "app.kubernetes.io/name": "ridgeline",
            "app.kubernetes.io/component": "worker",
            MANAGED_LABEL: MANAGED_BY,
            POOL_LABEL: self.name,
        }

    @property
    def pod_labels(self) -> dict[str, str]:
        return {**self.labels, MODEL_LABEL: self.model_name, ROLE_LABEL: self.spec.role.value}

    @property
    def selector(self) -> dict[str, str]:
        return {POOL_LABEL: self.name}

    @property
    def replica_selector(self) -> str:
        """Of the pods that count as replicas: of a group, its leader."""
        leader = f",{POD_INDEX_LABEL}=0" if self.grouped else ""
        return f"{POOL_LABEL}={self.name}{leader}"

    def manifest(self, api_version: str, kind: str, name: str, body: Mapping[str, Any]) -> Manifest:
        """With name, labels and owner. `body` is everything below metadata."""
        owner = {
            "apiVersion": API_VERSION,
            "kind": "WorkerPool",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        metadata = {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [owner],
        }
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def group_name(pool: str, group: int) -> str:
    return f"{pool}-g{group}"
