"""What front and core say to each other over their private socket.
All frozen; rows travel packed (see `rows`)."""

from dataclasses import dataclass
from typing import TypeAlias

from ridgeline_contracts.capabilities import Capabilities
from ridgeline_contracts.ids import Incarnation
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_engine.kv_events import KVChange
from ridgeline_engine.request import Request, RequestKey
from ridgeline_engine.snapshots import EngineCounts, LoadSnapshot, StepStats

from ridgeline_worker.rows import PackedRow
from ridgeline_worker.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class CoreSpec:
    """The first message: what the core is to build, and under which incarnation it lives."""

    factory: str
    settings: EngineSettings
    incarnation: Incarnation
    log_level: str
    folder: ModelFolder | None
    """As the front read it, so that a large one is not hashed twice.
    None only where the engine needs none."""


@dataclass(frozen=True, slots=True)
class SubmitCommand:
    request: Request


@dataclass(frozen=True, slots=True)
class CancelCommand:
    keys: tuple[RequestKey, ...]


@dataclass(frozen=True, slots=True)
class StopCommand:
    """Ends the core at once; what still runs gets no more rows."""


Command: TypeAlias = SubmitCommand | CancelCommand | StopCommand


@dataclass(frozen=True, slots=True)
class CoreReady:
    capabilities: Capabilities
    load: LoadSnapshot


@dataclass(frozen=True, slots=True)
class CoreFailed:
    """The core's last words, at the start or later: an error of the tree, by code."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine did not take a request; it has no rows."""

    key: RequestKey
    code: str
    message: str
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """After each step, also one that gave no rows: it is the core's sign of life."""

    rows: tuple[PackedRow, ...]
    stats: StepStats | None = None
    """None: nothing was run, only rows handed out."""
    counts: EngineCounts | None = None
    """Since the core's start; None where nothing was added since the last message."""
    load: LoadSnapshot | None = None
    """None: too soon after the last one. The step after which the core falls idle always has it."""
    kv_changes: tuple[KVChange, ...] = ()


Event: TypeAlias = CoreReady | CoreFailed | Refused | StepDone
