"""The machine topic: which dtype `ridgeline up` takes here and why, and what holds the machine back. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ridgeline_doctor.finding import Finding, Severity, ranked
from ridgeline_doctor.machine_evidence import MachineEvidence

DEFAULT_MODEL_BYTES = 2 * 1024**3
"""What the small default model takes with its cache, one worker, bf16: below it `up` refuses to start."""
_FIRST_BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """The dtype that `--dtype auto` means on a machine."""

    dtype: str
    """bf16 or fp32."""
    reason: str


def choose_dtype(machine: MachineEvidence) -> DtypeChoice:
    """bf16 wherever its products run at full speed: decode reads half the bytes. Else fp32."""
    if machine.gpus:
        gpu = machine.gpus[0]
        if gpu.compute_capability >= _FIRST_BF16_CAPABILITY:
            return DtypeChoice("bf16", f"{gpu.name} multiplies bf16 in its tensor cores")
        return DtypeChoice("fp32", f"{gpu.name} has no bf16 arithmetic")
    for flag, words in (("amx_bf16", "AMX tiles"), ("avx512_bf16", "AVX-512")):
        if flag in machine.flags:
            return DtypeChoice("bf16", f"the CPU multiplies bf16 by itself ({words})")
    if machine.c_compiler is not None:
        return DtypeChoice(
            "bf16", "the C kernels widen bf16 weights in registers: half the bytes, fp32 arithmetic"
        )
    return DtypeChoice(
        "fp32",
        "no bf16 instructions, and no C compiler to build the kernels that do without: torch emulates bf16",
    )


def machine_findings(machine: MachineEvidence) -> tuple[Finding, ...]:
    """Everything worth saying about the machine, problems first. The dtype is always among them."""
    return ranked(finding for rule in _RULES for finding in rule(machine))


def _dtype(machine: MachineEvidence) -> Iterator[Finding]:
    choice = choose_dtype(machine)
    yield Finding(
        "dtype",
        Severity.INFO,
        f"`ridgeline up --dtype auto` takes {choice.dtype}: {choice.reason}",
        f"CPU flags: {', '.join(sorted(machine.flags)) or 'none that matter'}; {len(machine.gpus)} GPU(s)",
        "compare with the other one: bench/engine_vs_vllm.py --quick --dtype bf16, then --dtype fp32",
    )


def _compiler(machine: MachineEvidence) -> Iterator[Finding]:
    if machine.c_compiler is None and not machine.gpus:
        yield Finding(
            "compiler",
            Severity.WARNING,
            "no C compiler: the engine runs on plain torch operators, several times slower at small batches",
            "none of cc, gcc, clang on the PATH",
            "install one (Debian and Ubuntu: apt-get install gcc libc6-dev), then `cc --version`",
        )


def _memory(machine: MachineEvidence) -> Iterator[Finding]:
    available = machine.memory_available_bytes
    figure = (
        f"{_gib(available)} available of {_gib(machine.memory_total_bytes)} (/proc/meminfo, control group)"
    )
    if available < DEFAULT_MODEL_BYTES:
        yield Finding(
            "memory",
            Severity.PROBLEM,
            f"under {_gib(DEFAULT_MODEL_BYTES)} free: the small default model may not start",
            figure,
            "stop what holds memory (`ps aux --sort=-rss | head`), or give less to --kv-memory",
        )


def _cores(machine: MachineEvidence) -> Iterator[Finding]:
    if machine.quota_cores is not None and machine.quota_cores < machine.cores:
        yield Finding(
            "cores",
            Severity.WARNING,
            f"the control group allows {machine.quota_cores:g} of {machine.cores} cores; no more are used",
            f"cpu.max gives {machine.quota_cores:g} cores",
            "raise the container's CPU limit; whole cores avoid throttling in the middle of a step",
        )
    if machine.usable_cores == 1:
        yield Finding(
            "cores",
            Severity.WARNING,
            "one core: gateway and engine take turns, so that client clocks read far above the engine's",
            "1 core usable",
            "compare client_ttft_ms with engine_ttft_ms in `ridgeline demo`",
        )


def _isa(machine: MachineEvidence) -> Iterator[Finding]:
    if machine.architecture == "x86_64" and "avx2" not in machine.flags and not machine.gpus:
        yield Finding(
            "isa",
            Severity.WARNING,
            "no AVX2: matrix products run at a fraction of the usual speed",
            f"{machine.cpu_model} lists no avx2",
            "in a virtual machine pass the host's CPU through (`-cpu host`); else take another machine",
        )


def _gpu(machine: MachineEvidence) -> Iterator[Finding]:
    if machine.gpu_device_files > len(machine.gpus):
        yield Finding(
            "gpu",
            Severity.WARNING,
            "a GPU is there that nvidia-smi does not report: the CPU will be used",
            f"{machine.gpu_device_files} device file(s), {len(machine.gpus)} reported",
            "run `nvidia-smi`; in a container pass the driver in (`--gpus all`)",
        )


_RULES: tuple[Callable[[MachineEvidence], Iterator[Finding]], ...] = (
    _memory,
    _compiler,
    _isa,
    _cores,
    _gpu,
    _dtype,
)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 1024**3:.1f} GiB"
