"""GPU classes: what the chart's values say of each kind of node, and how a pool's pods ask for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.resources.field_rules import Rule, Schema, object_name, text
from ridgeline_contracts.resources.model import Generation
from ridgeline_contracts.resources.shapes import from_object
from ridgeline_roofline.catalogue.gpus import gpu_named


@dataclass(frozen=True, slots=True)
class Toleration:
    """As in a pod."""

    key: Annotated[str | None, text("Key of the taint; left out: any.")] = None
    operator: Annotated[str, text("Exists or Equal.", pattern="^(Exists|Equal)$")] = "Exists"
    value: Annotated[str | None, text("For Equal.")] = None
    effect: Annotated[str | None, text("NoSchedule, PreferNoSchedule or NoExecute; left out: any.")] = None


@dataclass(frozen=True, slots=True)
class FabricResources:
    """What pods that exchange KV or activations over nodes ask for besides GPUs."""

    resources: Annotated[
        Mapping[str, str],
        Schema("Extended resources of one pod, such as rdma/hca: 1 or vpc.amazonaws.com/efa: 4."),
    ] = field(default_factory=dict)
    ipc_lock: Annotated[bool, Schema("RDMA registers memory: add IPC_LOCK.")] = False
    hugepages2_mi: Annotated[
        str | None, text("hugepages-2Mi of one pod, where the fabric asks for them.")
    ] = None


@dataclass(frozen=True, slots=True)
class GpuClass:
    """One kind of node, by the name that WorkerPools use."""

    generation: Annotated[Generation, Schema("Which of a Model's formats applies; cpu: no GPU.")]
    image: Annotated[str, text("Worker image for it.", most=512)]
    catalogue_id: Annotated[
        str | None, text("Id in `ridgeline plan`'s catalogue, for the memory ledger; left out for cpu.")
    ] = None
    resource_name: Annotated[str, text("Extended resource that counts GPUs.")] = "nvidia.com/gpu"
    claim_template: Annotated[
        str | None, object_name("ResourceClaimTemplate of one pod's GPUs, instead of resourceName.")
    ] = None
    node_selector: Annotated[Mapping[str, str], Schema("Labels of its nodes.")] = field(default_factory=dict)
    tolerations: Annotated[tuple[Toleration, ...], Schema("Taints of its nodes.")] = ()
    runtime_class: Annotated[str | None, object_name("RuntimeClass of its pods.")] = None
    fabric: Annotated[FabricResources, Schema("For pools over nodes, and prefill and decode pools.")] = field(
        default_factory=FabricResources
    )
    annotations: Annotated[Mapping[str, str], Schema("On its pods.")] = field(default_factory=dict)

    RULES: ClassVar[tuple[Rule, ...]] = ()

    @property
    def on_cpu(self) -> bool:
        return self.generation is Generation.CPU


def read_gpu_classes(held: Mapping[str, Any]) -> Mapping[str, GpuClass]:
    """By name, from the chart's values. Raises SettingsError naming the class that is not whole."""
    classes: dict[str, GpuClass] = {}
    for name, entry in held.items():
        if not isinstance(entry, Mapping):
            raise SettingsError(f"gpuClasses.{name} is no mapping: give generation and image")
        found: GpuClass = from_object(GpuClass, entry, path=f"gpuClasses.{name}")
        if not found.on_cpu and found.catalogue_id is None:
            raise SettingsError(
                f"gpuClasses.{name}.catalogueId is missing: give the id of `ridgeline plan`, such as h100-sxm"
            )
        if found.catalogue_id is not None:
            _check_catalogue(name, found.catalogue_id)
        classes[name] = found
    return classes


def _check_catalogue(name: str, catalogue_id: str) -> None:
    try:
        gpu_named(catalogue_id)
    except SettingsError as error:
        raise SettingsError(f"gpuClasses.{name}.catalogueId: {error.message}") from error
