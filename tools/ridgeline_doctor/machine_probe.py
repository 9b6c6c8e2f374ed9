"""Reads the machine: /proc, /sys, the PATH and nvidia-smi. Decides nothing."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ridgeline_doctor.machine_evidence import (
    GpuEvidence,
    MachineEvidence,
    parse_byte_count,
    parse_cpu_quota,
    parse_cpuinfo,
    parse_meminfo,
    parse_nvidia_smi,
)

_COMPILERS = ("cc", "gcc", "clang")
_NVIDIA_SMI_TIMEOUT_S = 20.0
_GPU_FIELDS = "name,memory.total,compute_cap,driver_version"


def probe_machine(*, root: Path = Path("/"), compilers: Sequence[str] = _COMPILERS) -> MachineEvidence:
    """Gathers the evidence. What cannot be read counts as absent; takes milliseconds without a GPU.

    `root` is where proc, sys and dev are looked for. `compilers` are program names or paths, first choice
    first.
    """
    cpu = parse_cpuinfo(_read(root / "proc/cpuinfo"))
    total_bytes, available_bytes = parse_meminfo(_read(root / "proc/meminfo"))
    group = root / "sys/fs/cgroup"
    limit_bytes = parse_byte_count(_read(group / "memory.max"))
    if limit_bytes is not None:
        used_bytes = parse_byte_count(_read(group / "memory.current")) or 0
        total_bytes = min(total_bytes, limit_bytes)
        available_bytes = min(available_bytes, max(0, limit_bytes - used_bytes))
    return MachineEvidence(
        architecture=platform.machine(),
        cpu_model=cpu.model,
        cores=len(os.sched_getaffinity(0)),
        quota_cores=parse_cpu_quota(_read(group / "cpu.max")),
        flags=cpu.flags,
        memory_total_bytes=total_bytes,
        memory_available_bytes=available_bytes,
        c_compiler=next((path for path in map(shutil.which, compilers) if path is not None), None),
        gpus=_gpus(),
        gpu_device_files=len([path for path in (root / "dev").glob("nvidia*") if path.name[6:].isdigit()]),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _gpus() -> tuple[GpuEvidence, ...]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    command = [program, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(
            command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        # A driver that hangs is no GPU to plan with; the device files still tell that there is one.
        return ()
    return parse_nvidia_smi(said.stdout) if said.returncode == 0 else ()
