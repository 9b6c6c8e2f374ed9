"""Which processes `up` runs, with which flags and variables: facts in, plan out. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

LOOPBACK = "127.0.0.1"
WORKER_START_TIMEOUT_MS = 900_000
"""Loading, packing and the first compilation of the kernels."""
FRONT_START_TIMEOUT_MS = 120_000


class Role(StrEnum):
    ROUTER = "router"
    WORKER = "worker"
    GATEWAY = "gateway"


STOP_ORDER = (Role.GATEWAY, Role.WORKER, Role.ROUTER)
"""The gateway ends its streams while the workers still answer; nobody asks the router any more at the end."""


@dataclass(frozen=True, slots=True)
class Ports:
    """TCP ports on loopback. They stay the same over restarts of a child."""

    gateway: int
    admin: int
    router: int
    router_metrics: int
    workers: tuple[int, ...]
    worker_metrics: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model as `up` passes it on."""

    name: str
    folder: Path
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """Where the secrets lie, each a file of mode 0600: they are passed by path, never in a command line."""

    pepper: Path
    admin_key: Path
    tenant_key: Path


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """All that the plan follows from."""

    python: str
    model: ModelFacts
    dtype: str
    threads_per_worker: int
    kv_bytes: int | None
    """None: the worker derives it from its device."""
    ports: Ports
    keys: KeyFiles
    data_dir: Path
    cache_dir: Path
    """Where workers keep compiled kernels: shared, since equal sources give equal files."""
    gpus: int = 0
    """That workers are spread over; 0 leaves the choice to them."""
    weights: str = "auto"
    deterministic: bool = False

    @property
    def workers(self) -> int:
        return len(self.ports.workers)


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One process to run."""

    name: str
    role: Role
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    """On top of the supervisor's own."""
    ready_url: str
    """Answers 200 from when it can serve."""
    start_timeout_ms: float


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """The children in the order in which they are started."""

    children: tuple[ChildSpec, ...]

    def of(self, role: Role) -> tuple[ChildSpec, ...]:
        return tuple(child for child in self.children if child.role is role)


def plan_processes(facts: PlanFacts) -> ProcessPlan:
    """One router, the workers, one gateway. All may start at once: each waits for those that it needs."""
    workers = tuple(_worker(facts, index) for index in range(facts.workers))
    return ProcessPlan((_router(facts), *workers, _gateway(facts)))


def worker_name(index: int) -> str:
    return f"worker-{index}"


def address(port: int) -> str:
    return f"{LOOPBACK}:{port}"


def _router(facts: PlanFacts) -> ChildSpec:
    ports = facts.ports
    flags = ["--port", str(ports.router), "--metrics-port", str(ports.router_metrics)]
    for index, port in enumerate(ports.workers):
        flags += ["--worker", f"{worker_name(index)}={address(port)}"]
    return _child(facts, "router", Role.ROUTER, flags, ready_port=ports.router_metrics, threads=1)


def _worker(facts: PlanFacts, index: int) -> ChildSpec:
    name, threads = worker_name(index), facts.threads_per_worker
    port, metrics_port = facts.ports.workers[index], facts.ports.worker_metrics[index]
    flags = ["--model", str(facts.model.folder), "--model-name", facts.model.name, "--worker-id", name]
    flags += ["--port", str(port), "--metrics-port", str(metrics_port)]
    flags += ["--dtype", facts.dtype, "--weights", facts.weights, "--threads", str(threads)]
    flags += ["--cache-dir", str(facts.cache_dir)]
    if facts.deterministic:
        flags.append("--deterministic")
    if facts.kv_bytes is not None:
        flags += ["--kv-memory", str(facts.kv_bytes)]
    child = _child(facts, name, Role.WORKER, flags, ready_port=metrics_port, threads=threads)
    if facts.gpus == 0:
        return child
    chosen = ("CUDA_VISIBLE_DEVICES", str(index % facts.gpus))
    return replace(child, environment=(*child.environment, chosen))


def _gateway(facts: PlanFacts) -> ChildSpec:
    ports, keys = facts.ports, facts.keys
    flags = ["--port", str(ports.gateway), "--admin-port", str(ports.admin)]
    flags += ["--router", address(ports.router), "--data-dir", str(facts.data_dir)]
    flags += ["--admin-key-file", str(keys.admin_key), "--pepper-file", str(keys.pepper)]
    return _child(facts, "gateway", Role.GATEWAY, flags, ready_port=ports.admin, threads=1)


def _child(
    facts: PlanFacts, name: str, role: Role, flags: list[str], *, ready_port: int, threads: int
) -> ChildSpec:
    # -P: a folder that happens to be called like one of our imports must not be found in the working
    # directory.
    command = (facts.python, "-P", "-m", f"ridgeline_{role}", *flags)
    environment = (
        ("PYTHONUNBUFFERED", "1"),
        ("OMP_NUM_THREADS", str(threads)),
        # Spinning threads of several processes on shared cores starve each other.
        ("OMP_WAIT_POLICY", "passive"),
        # All that the parts say to each other stays on loopback, whatever proxy the user's shell names.
        ("no_grpc_proxy", f"{LOOPBACK},localhost"),
    )
    timeout_ms = WORKER_START_TIMEOUT_MS if role is Role.WORKER else FRONT_START_TIMEOUT_MS
    ready_url = f"http://{address(ready_port)}/readyz"
    return ChildSpec(name, role, command, environment, ready_url, start_timeout_ms=timeout_ms)
