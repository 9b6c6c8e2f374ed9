"""The kinds: names, scope, columns, and the CRD of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ridgeline_contracts.resources.model import ModelSpecResource, ModelStatus
from ridgeline_contracts.resources.shapes import structural_schema
from ridgeline_contracts.resources.tenant import (
    TenantKeySpec,
    TenantKeyStatus,
    TenantSpec,
    TenantStatus,
)
from ridgeline_contracts.resources.worker_pool import (
    MAX_POOL_NAME_CHARACTERS,
    WorkerPoolSpec,
    WorkerPoolStatus,
)

GROUP: Final = "ridgeline.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"


@dataclass(frozen=True, slots=True)
class Column:
    """What `kubectl get` prints."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Only with `-o wide`."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    plural: str
    short: str
    namespaced: bool
    spec: type
    status: type
    columns: tuple[Column, ...]
    scaled: bool = False
    max_name_characters: int = 63

    @property
    def api_path(self) -> str:
        """Of all objects of the kind, in all namespaces."""
        return f"/apis/{API_VERSION}/{self.plural}"


_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def _condition(kind: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


MODEL: Final = Kind(
    "Model",
    "models",
    "rlm",
    True,
    ModelSpecResource,
    ModelStatus,
    (
        Column("Revision", ".spec.revision"),
        Column("Ready", _condition("Ready", "status")),
        Column("Reason", _condition("Ready", "reason")),
        Column("Pools", ".status.pools", "integer"),
        Column("Message", _condition("Ready", "message"), wide=True),
        _AGE,
    ),
)
WORKER_POOL: Final = Kind(
    "WorkerPool",
    "workerpools",
    "rlp",
    True,
    WorkerPoolSpec,
    WorkerPoolStatus,
    (
        Column("Model", ".spec.modelRef.name"),
        Column("Class", ".spec.gpuClass"),
        Column("Ready", ".status.readyReplicas", "integer"),
        Column("Wanted", ".spec.replicas", "integer"),
        Column("Accepted", _condition("Accepted", "status")),
        Column("Reason", _condition("Ready", "reason")),
        Column("GPUs", ".status.gpus", "integer", wide=True),
        Column("Capacity", ".status.capacityReady", wide=True),
        Column("Message", _condition("Ready", "message"), wide=True),
        _AGE,
    ),
    scaled=True,
    max_name_characters=MAX_POOL_NAME_CHARACTERS,
)
TENANT: Final = Kind(
    "Tenant",
    "tenants",
    "rlt",
    False,
    TenantSpec,
    TenantStatus,
    (
        Column("Class", ".spec.requestClass"),
        Column("Weight", ".spec.weight", "number"),
        Column("Ready", _condition("Ready", "status")),
        Column("Reason", _condition("Ready", "reason")),
        Column("Message", _condition("Ready", "message"), wide=True),
        _AGE,
    ),
)
TENANT_KEY: Final = Kind(
    "TenantKey",
    "tenantkeys",
    "rlk",
    True,
    TenantKeySpec,
    TenantKeyStatus,
    (
        Column("Tenant", ".spec.tenant"),
        Column("Secret", ".spec.secretName"),
        Column("Key", ".status.keyId"),
        Column("Ready", _condition("Ready", "status")),
        Column("Reason", _condition("Ready", "reason")),
        Column("Message", _condition("Ready", "message"), wide=True),
        _AGE,
    ),
)
KINDS: Final = (MODEL, WORKER_POOL, TENANT, TENANT_KEY)


def custom_resource_definition(kind: Kind) -> dict[str, Any]:
    """The CRD. Helm leaves it alone at uninstall: its objects go with it."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "ridgeline", "app.kubernetes.io/component": "crd"},
        },
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short],
                "categories": ["ridgeline"],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [_version(kind)],
        },
    }


def _version(kind: Kind) -> dict[str, Any]:
    subresources: dict[str, Any] = {"status": {}}
    if kind.scaled:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": subresources,
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "schema": {"openAPIV3Schema": _root_schema(kind)},
    }


def _column(column: Column) -> dict[str, Any]:
    wide = {"priority": 1} if column.wide else {}
    return {"name": column.name, "type": column.type, "jsonPath": column.path, **wide}


def _root_schema(kind: Kind) -> dict[str, Any]:
    most = kind.max_name_characters
    name_rule: Mapping[str, str] = {
        "rule": f"self.metadata.name.size() <= {most} && !self.metadata.name.contains('.')",
        "message": f"metadata.name must be at most {most} characters long and hold no dot: give a shorter plain name",
    }
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(kind.spec),
            "status": structural_schema(kind.status),
        },
        "x-kubernetes-validations": [name_rule],
    }
