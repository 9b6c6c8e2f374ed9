"""What a machine is, as facts, and the pure readers of the kernel's texts that the facts come from."""

from dataclasses import dataclass

ISA_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
"""The CPU features that change which kernels run, as /proc/cpuinfo spells them."""


@dataclass(frozen=True, slots=True)
class GpuEvidence:
    """One CUDA device, as its driver reports it."""

    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    driver_version: str


@dataclass(frozen=True, slots=True)
class MachineEvidence:
    """All that the machine topic is told from. Gathered by `machine_probe`, or written down in a test."""

    architecture: str
    """As `uname -m` says it."""
    cpu_model: str
    cores: int
    """That this process may run on (its affinity mask)."""
    quota_cores: float | None
    """The control group's CPU limit; None: no limit."""
    flags: frozenset[str]
    """Of ISA_FLAGS, those that the CPU has."""
    memory_total_bytes: int
    memory_available_bytes: int
    """What can be taken now without swapping, the control group's limit counted in."""
    c_compiler: str | None
    """Path of the C compiler that the kernels would be built with."""
    gpus: tuple[GpuEvidence, ...] = ()
    gpu_device_files: int = 0
    """How many /dev/nvidia<N> there are: a driver can be loaded while its tools are missing."""

    @property
    def usable_cores(self) -> int:
        """Whole cores to plan threads with: at least 1."""
        limit = self.cores if self.quota_cores is None else min(self.cores, int(self.quota_cores))
        return max(1, limit)


@dataclass(frozen=True, slots=True)
class CpuText:
    """What /proc/cpuinfo tells of the first processor."""

    model: str
    flags: frozenset[str]


def parse_cpuinfo(text: str) -> CpuText:
    """Reads /proc/cpuinfo. Unknown layouts (ARM has no `flags` line) give an empty set, never an error."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    flags = frozenset(fields.get("flags", "").split())
    return CpuText(model=fields.get("model name", "unknown"), flags=flags.intersection(ISA_FLAGS))


def parse_meminfo(text: str) -> tuple[int, int]:
    """Reads /proc/meminfo: (total, available) in bytes; 0 for a line that is not there."""
    sizes_kb = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            sizes_kb[name] = int(words[0])
    return sizes_kb.get("MemTotal", 0) * 1024, sizes_kb.get("MemAvailable", 0) * 1024


def parse_cpu_quota(text: str) -> float | None:
    """Reads a control group's cpu.max (`QUOTA PERIOD` in microseconds, or `max PERIOD`): cores, or None."""
    words = text.split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def parse_byte_count(text: str) -> int | None:
    """Reads a control group's byte count; None for `max`, an empty text or anything else."""
    word = text.strip()
    return int(word) if word.isdigit() else None


def parse_nvidia_smi(text: str) -> tuple[GpuEvidence, ...]:
    """Reads `nvidia-smi --query-gpu=name,memory.total,compute_cap,driver_version` as csv,noheader,nounits.

    Lines of another shape (warnings, `[N/A]`) are left out.
    """
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) != 4 or not words[1].isdigit():
            continue
        major, _, minor = words[2].partition(".")
        if not (major.isdigit() and minor.isdigit()):
            continue
        found.append(GpuEvidence(words[0], int(words[1]) * 1024**2, (int(major), int(minor)), words[3]))
    return tuple(found)
