"""How much memory this process may still take: the machine's, or the container's where that is less."""

from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP) -> int:
    """The kernel's estimate of what can be taken without swapping, bounded by the cgroup's limit
    (version 2)."""
    machine = int(psutil.virtual_memory().available)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return machine
    return min(machine, max(0, limit - used))


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or `max` in it."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
