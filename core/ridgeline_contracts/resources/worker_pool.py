"""`WorkerPool`: replicas of one model on one GPU class in one layout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from ridgeline_contracts.resources.field_rules import (
    Rule,
    Schema,
    count,
    fixed,
    more_than_zero,
    object_name,
    quantity,
    text,
)
from ridgeline_contracts.resources.status import ConditionObject, Derivation

MAX_REPLICAS = 1000
MAX_POOL_NAME_CHARACTERS = 40
"""Names of pods carry a group's number and a hash behind the pool's, in 63 characters."""


class PoolRole(StrEnum):
    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class SchedulingPolicy(StrEnum):
    """The engine's `--policy`."""

    FAIR = "fair"
    FCFS = "fcfs"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True)
class ModelReference:
    """A Model by name."""

    name: Annotated[str, object_name("Name of the Model.")]
    namespace: Annotated[str | None, object_name("Its namespace; default: the pool's own.")] = None


@dataclass(frozen=True, slots=True)
class Layout:
    """How one replica lies over GPUs and nodes."""

    tp: Annotated[int, count("Ranks that share every matrix.", most=64)] = 1
    pp: Annotated[int, count("Pipeline stages.", most=64)] = 1
    dp: Annotated[int, count("Replicas of attention within the replica.", most=64)] = 1
    ep: Annotated[int, count("Ranks that the experts are divided over.", most=512)] = 1
    nodes: Annotated[
        int,
        count(
            "Pods, each on a node of its own, that form one replica.",
            most=64,
            rules=(fixed("layout.nodes", "make a new pool, and delete this one when it serves"),),
        ),
    ] = 1
    gpus_per_node: Annotated[int, count("GPUs of each pod; 0 for a CPU class.", least=0, most=16)] = 1
    allow_kv_copies: Annotated[
        bool, Schema("Accept TP past the model's KV heads, which then holds copies of KV.")
    ] = False

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.gpusPerNode == 0 || self.tp * self.pp * self.dp <= self.nodes * self.gpusPerNode",
            "layout: tp x pp x dp exceeds nodes x gpusPerNode: lower tp, pp or dp, or give more GPUs or nodes",
        ),
        Rule(
            "self.gpusPerNode > 0 || self.tp * self.pp * self.dp * self.nodes == 1",
            "layout: gpusPerNode 0 (a CPU class) holds one rank: leave tp, pp, dp and nodes at 1",
            ".gpusPerNode",
        ),
        Rule(
            "self.gpusPerNode == 0 || self.tp * self.pp * self.dp >= self.nodes",
            "layout: some nodes would hold no rank: lower nodes, or raise tp, pp or dp",
            ".nodes",
        ),
        Rule(
            "self.ep == 1 || (self.tp * self.dp) % self.ep == 0",
            "layout: ep must divide tp x dp: give ep 1 or a divisor",
            ".ep",
        ),
    )


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Overrides of what the engine derives; leave out what it should derive."""

    max_batch: Annotated[int | None, count("Sequences that run at once.", most=65536)] = None
    max_context_tokens: Annotated[
        int | None, count("Prompt and output together.", least=16, most=16_777_216)
    ] = None
    kv_memory: Annotated[str | None, quantity("Size of the KV cache.", field="engine.kvMemory")] = None
    policy: Annotated[SchedulingPolicy, Schema("Order of waiting requests.")] = SchedulingPolicy.FAIR
    ttft_target_seconds: Annotated[
        float | None, more_than_zero("Interactive requests that would wait longer are refused.", most=3600)
    ] = None
    tpot_target_seconds: Annotated[
        float | None, more_than_zero("Steps of interactive requests stay below it.", most=60)
    ] = None


@dataclass(frozen=True, slots=True)
class PodResources:
    """Of one worker pod, GPUs apart."""

    cpu: Annotated[str, quantity("Cores, requested; no limit is set.", field="resources.cpu")] = "8"
    memory: Annotated[
        str, quantity("Host memory, request and limit, without sharedMemory.", field="resources.memory")
    ] = "64Gi"
    shared_memory: Annotated[
        str, quantity("/dev/shm; counted into the memory limit.", field="resources.sharedMemory")
    ] = "8Gi"


@dataclass(frozen=True, slots=True)
class Drain:
    """How a worker leaves."""

    max_seconds: Annotated[
        int,
        count(
            "Longest time that running streams may take to end.",
            least=5,
            most=86400,
            rules=(fixed("drain.maxSeconds", "pods that run were promised it; make a new pool for another"),),
        ),
    ] = 300


@dataclass(frozen=True, slots=True)
class Start:
    """What a start may take."""

    load_bytes_per_second: Annotated[
        int, count("Slowest rate at which weights are expected to load.", least=1_000_000, most=10**12)
    ] = 500_000_000
    compile_seconds: Annotated[
        int, count("For compiling kernels and capturing graphs.", least=0, most=7200)
    ] = 600


@dataclass(frozen=True, slots=True)
class Update:
    """How a changed spec reaches the pods of single-node replicas."""

    max_surge: Annotated[int, count("Pods above replicas.", least=0, most=MAX_REPLICAS)] = 1
    max_unavailable: Annotated[
        int, count("Replicas that may be missing; disruption budgets use it too.", least=0, most=MAX_REPLICAS)
    ] = 0

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.maxSurge + self.maxUnavailable >= 1",
            "update: maxSurge and maxUnavailable are both 0, so nothing could change: give one of them 1",
        ),
    )


@dataclass(frozen=True, slots=True)
class WorkerPoolSpec:
    """What a WorkerPool asks for."""

    model_ref: Annotated[
        ModelReference,
        Schema("The Model that it serves.", rules=(fixed("modelRef", "make a new pool for another Model"),)),
    ]
    gpu_class: Annotated[
        str,
        Schema(
            "A GPU class of the chart's values.",
            min_length=1,
            max_length=63,
            pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
            rules=(fixed("gpuClass", "make a new pool on the other class"),),
        ),
    ]
    layout: Annotated[Layout, Schema("Over GPUs and nodes.")] = field(default_factory=Layout)
    role: Annotated[
        PoolRole,
        Schema("Which part of a request it computes.", rules=(fixed("role", "make a new pool for it"),)),
    ] = PoolRole.UNIFIED
    replicas: Annotated[int, count("Replicas; `kubectl scale` sets it.", least=0, most=MAX_REPLICAS)] = 1
    min_replicas: Annotated[int | None, count("Scaling below is refused.", least=0, most=MAX_REPLICAS)] = None
    max_replicas: Annotated[int | None, count("Scaling above is refused.", most=MAX_REPLICAS)] = None
    engine: Annotated[EngineOptions, Schema("Engine overrides.")] = field(default_factory=EngineOptions)
    resources: Annotated[PodResources, Schema("CPU and host memory.")] = field(default_factory=PodResources)
    drain: Annotated[Drain, Schema("How workers leave.")] = field(default_factory=Drain)
    start: Annotated[Start, Schema("The budget of a start.")] = field(default_factory=Start)
    update: Annotated[Update, Schema("How changes roll.")] = field(default_factory=Update)
    image: Annotated[str | None, text("Worker image; default: that of the GPU class.", most=512)] = None
    pod_template: Annotated[
        Mapping[str, Any] | None,
        Schema("Merged over the rendered pod template (metadata and spec), lists of named objects by name."),
    ] = None

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "minReplicas exceeds maxReplicas: lower it, or raise maxReplicas",
            ".minReplicas",
        ),
        Rule(
            "!has(self.minReplicas) || self.replicas >= self.minReplicas",
            "replicas is below minReplicas: raise it, or lower minReplicas",
            ".replicas",
        ),
        Rule(
            "!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
            "replicas is above maxReplicas: lower it, or raise maxReplicas",
            ".replicas",
        ),
    )


@dataclass(frozen=True, slots=True)
class WorkerPoolStatus:
    """What a pool is and does now."""

    observed_generation: Annotated[int | None, Schema("Of the spec that this status tells of.")] = None
    replicas: Annotated[
        int | None, Schema("Replicas that exist: of a group, its leader counts.", minimum=0)
    ] = None
    ready_replicas: Annotated[int | None, Schema("Replicas that serve.", minimum=0)] = None
    selector: Annotated[str | None, text("Of the pods that count as replicas.", most=1024)] = None
    gpus: Annotated[int | None, Schema("GPUs that all replicas together ask for.", minimum=0)] = None
    model: Annotated[str | None, text("namespace/name of the Model.", most=127)] = None
    weights_format: Annotated[str | None, text("Format of the weights on this generation.", most=16)] = None
    capacity_per_replica: Annotated[
        str | None, text("Capacity units: requests/s at the reference workload.", most=32)
    ] = None
    capacity_ready: Annotated[str | None, text("Capacity units of all replicas that serve.", most=32)] = None
    accepted_revision: Annotated[
        str | None, text("ControllerRevision that holds the spec in force.", most=253)
    ] = None
    ready_reason: Annotated[str | None, text("Why it does or does not serve, in a word.", most=128)] = None
    derivations: Annotated[
        tuple[Derivation, ...], Schema("What was derived, and from which numbers.", max_items=32, key="name")
    ] = ()
    conditions: Annotated[
        tuple[ConditionObject, ...], Schema("Accepted, Applied, Ready.", max_items=8, key="type")
    ] = ()
