"""What the operator is told at its start: read once, whole."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.resources.field_rules import Schema, count, object_name
from ridgeline_contracts.resources.shapes import fields_of, from_object

from ridgeline_operator.gpu_classes import GpuClass, read_gpu_classes


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The settings file, which the chart renders from its values."""

    release_namespace: Annotated[str, object_name("Where gateway and router run.")]
    gpu_classes: Annotated[Mapping[str, Any], Schema("GPU classes by name.")]
    monitoring_namespace_labels: Annotated[
        Mapping[str, str], Schema("Of namespaces that may read worker metrics.")
    ] = field(default_factory=dict)
    resync_seconds: Annotated[int, count("Every object is looked at again after it.", most=3600)] = 300
    lease_seconds: Annotated[int, count("Life of the leader's Lease.", least=3, most=600)] = 15


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    release_namespace: str
    gpu_classes: Mapping[str, GpuClass]
    monitoring_namespace_labels: Mapping[str, str] = field(default_factory=dict)
    resync_ms: int = 300_000
    lease_ms: int = 15_000


def read_settings(held: Any) -> OperatorSettings:
    """Raises SettingsError or InvalidRequest naming the key that is unknown, missing or wrong."""
    if not isinstance(held, Mapping):
        raise SettingsError("the settings file holds no mapping: give releaseNamespace and gpuClasses")
    known = {each.name for each in fields_of(FileSettings)}
    unknown = sorted(set(held) - known)
    if unknown:
        raise SettingsError(f"settings: {', '.join(unknown)} unknown: known are {' '.join(sorted(known))}")
    read: FileSettings = from_object(FileSettings, held, path="settings")
    return OperatorSettings(
        release_namespace=read.release_namespace,
        gpu_classes=read_gpu_classes(read.gpu_classes),
        monitoring_namespace_labels=read.monitoring_namespace_labels,
        resync_ms=read.resync_seconds * 1000,
        lease_ms=read.lease_seconds * 1000,
    )
