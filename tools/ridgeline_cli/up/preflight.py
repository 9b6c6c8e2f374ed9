"""What must hold before anything is started, and the sizes that follow from the machine. Pure."""

from dataclasses import dataclass

from ridgeline_contracts.errors import SettingsError
from ridgeline_doctor.machine_evidence import MachineEvidence
from ridgeline_doctor.machine_findings import choose_dtype

from ridgeline_cli.up.sizes import written_size

DTYPES = ("auto", "bf16", "fp32")
WEIGHTS = ("auto", "int8", "int4")
MAX_WORKERS = 64
KV_BYTES_BY_DEFAULT = 1024**3
"""Per worker.

Some twenty thousand tokens of the small default model in fp32, and leaves a laptop its memory.
"""
KV_BYTES_AT_LEAST = 64 * 1024**2
_PROCESS_BYTES = 700 * 1024**2
"""A worker without weights: two Python processes, torch, its buffers."""
_SERVICE_BYTES = 300 * 1024**2
"""Gateway and router together."""
_SPARE_RATIO = 0.9
"""Of the available memory may be planned for: the rest is the user's."""


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The flags, as given. None: derive it."""

    workers: int = 1
    model: str = "smollm2-135m-instruct"
    port: int = 8000
    admin_port: int | None = None
    dtype: str = "auto"
    weights: str = "auto"
    deterministic: bool = False
    threads_per_worker: int | None = None
    kv_bytes: int | None = None


def check_options(options: UpOptions) -> None:
    """Raises SettingsError for the first flag that cannot work on any machine."""
    if options.dtype not in DTYPES:
        raise SettingsError(
            f"--dtype {options.dtype!r} is unknown: give one of {', '.join(DTYPES)}", param="dtype"
        )
    if options.weights not in WEIGHTS:
        raise SettingsError(
            f"--weights {options.weights!r} is unknown: give one of {', '.join(WEIGHTS)}", param="weights"
        )
    if not 1 <= options.workers <= MAX_WORKERS:
        raise SettingsError(
            f"--workers {options.workers} is out of range: give 1 to {MAX_WORKERS}", param="workers"
        )
    for flag, port in (("--port", options.port), ("--admin-port", options.admin_port)):
        if port is not None and not 1 <= port <= 65535:
            raise SettingsError(f"{flag} {port} is no TCP port: give 1 to 65535", param=flag.strip("-"))
    if options.admin_port == options.port:
        raise SettingsError(
            f"--port and --admin-port are both {options.port}: give two ports", param="admin_port"
        )
    if options.threads_per_worker is not None and options.threads_per_worker < 1:
        raise SettingsError(
            f"--threads-per-worker {options.threads_per_worker} is out of range: give at least 1",
            param="threads_per_worker",
        )


def resolve_dtype(options: UpOptions, machine: MachineEvidence) -> str:
    """bf16 or fp32."""
    return choose_dtype(machine).dtype if options.dtype == "auto" else options.dtype


def resolve_threads(options: UpOptions, machine: MachineEvidence) -> int:
    """Threads of each worker: the cores divided between the workers, unless stated."""
    if options.threads_per_worker is not None:
        return options.threads_per_worker
    return max(1, machine.usable_cores // options.workers)


def resolve_kv_bytes(
    options: UpOptions, machine: MachineEvidence, *, weight_bytes: int, dtype: str
) -> int | None:
    """KV memory of each worker: as stated, else up to KV_BYTES_BY_DEFAULT of what is left.

    With GPUs it is theirs: None lets each worker take what its own has free. `weight_bytes` are those of the
    model's files, in 16 bits a weight. Raises SettingsError, with the sum and the smallest change that helps, where
    it does not fit.
    """
    if machine.gpus:
        return _gpu_kv_bytes(options, gpus=len(machine.gpus))
    loaded_bytes = weight_bytes * (2 if dtype == "fp32" else 1)
    fixed_bytes = _SERVICE_BYTES + options.workers * (_PROCESS_BYTES + loaded_bytes)
    usable_bytes = int(machine.memory_available_bytes * _SPARE_RATIO)
    wanted_bytes = options.kv_bytes or KV_BYTES_AT_LEAST
    needed_bytes = fixed_bytes + options.workers * wanted_bytes
    if needed_bytes > usable_bytes:
        raise SettingsError(
            f"too little memory: {options.workers} worker(s) with {written_size(loaded_bytes)} of {dtype} "
            f"weights and {written_size(wanted_bytes)} of KV each need {written_size(needed_bytes)}, "
            f"{written_size(usable_bytes)} can be used: {_way_out(options, dtype)}"
        )
    if options.kv_bytes is not None:
        return options.kv_bytes
    return min(KV_BYTES_BY_DEFAULT, (usable_bytes - fixed_bytes) // options.workers)


def _gpu_kv_bytes(options: UpOptions, *, gpus: int) -> int | None:
    if options.kv_bytes is None and options.workers > gpus:
        raise SettingsError(
            f"{options.workers} workers share {gpus} GPU(s), and each would take all that is free: "
            "give --kv-memory, or take fewer --workers",
            param="kv_memory",
        )
    return options.kv_bytes


def _way_out(options: UpOptions, dtype: str) -> str:
    ways = []
    if options.kv_bytes is not None:
        ways.append(f"lower --kv-memory (at least {written_size(KV_BYTES_AT_LEAST)})")
    if options.workers > 1:
        ways.append("take fewer --workers")
    if dtype == "fp32":
        ways.append("take --dtype bf16")
    return ", ".join(ways) or "free some, or take a smaller --model"
