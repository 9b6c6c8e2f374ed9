"""What a worker is started with. Read once, whole; `flags` makes it from the command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from ridgeline_contracts.ids import ModelName, WorkerId
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.settings import AsyncScheduling

Dtype: TypeAlias = Literal["auto", "bf16", "fp32"]
DTYPES: tuple[Dtype, ...] = ("auto", "bf16", "fp32")
Weights: TypeAlias = Literal["auto", "int8", "int4"]
WEIGHTS: tuple[Weights, ...] = ("auto", "int8", "int4")
REAL_CORE_FACTORY = "ridgeline_worker.core_factory:build_engine"


@dataclass(frozen=True, slots=True)
class SchedulingChoices:
    """Targets and policies, as the engine's settings explain them."""

    policy: str = "fair"
    preemption: str = "auto"
    tpot_target_ms: float | None = 30.0
    ttft_target_ms: float | None = None
    async_scheduling: AsyncScheduling = AsyncScheduling.AUTO
    overrides: PolicyOverrides = field(default_factory=PolicyOverrides)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the core builds its engine from. None means: derive it."""

    model_folder: Path
    dtype: Dtype = "auto"
    weights: Weights = "auto"
    """Of the matrices; auto: as dtype says."""
    device: str = "auto"
    threads: int = 1
    kv_bytes: int | None = None
    kv_blocks: int | None = None
    host_kv_bytes: int = 0
    """Of the host's memory, for sequences that are swapped out; 0: none ever is."""
    block_tokens: int = 16
    max_batch: int | None = None
    max_context_tokens: int | None = None
    deterministic: bool = False
    """A request's logits are the same bits in any batch; slower."""
    cache_folder: Path | None = None
    """Where the executor keeps what it compiled or packed."""
    scheduling: SchedulingChoices = field(default_factory=SchedulingChoices)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """Where and under which names the worker serves."""

    worker_id: WorkerId
    model_name: ModelName | None = None
    """None: the name that the model folder has."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    metrics_port: int = 0
    pool: str = "default"
    role: str = "unified"
    price_version: str = ""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds in time and memory."""

    watchdog_ms: float = 120_000
    """A core with work that says nothing for so long is killed. Longer than the longest step."""
    start_timeout_ms: float = 900_000
    """Loading and compiling may take this long."""
    drain_max_ms: float = 30_000
    outbox_rows: int = 8192
    """Rows that one gateway may leave unread before it loses its requests."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    engine: EngineSettings
    serving: ServingSettings
    limits: LimitSettings = field(default_factory=LimitSettings)
    core_factory: str = REAL_CORE_FACTORY
    """`module:function` that the core calls to build its engine. No flag sets it."""
    log_level: str = "info"
