"""How much memory this process may still take: the machine's, or the container's where that is less."""

import ctypes
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
    # Cached files count as used, but make way: after a download the model's own are in there.
    return min(machine, max(0, limit - used + _cached_file_bytes(cgroup / "memory.stat")))


def resident_bytes() -> int:
    """Of this process, pages of mapped files among them."""
    return int(psutil.Process().memory_info().rss)


def give_back_freed() -> None:
    """Has the C library return what was freed: after loading it keeps the pieces that matrices were read into."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc's; other libraries return memory by themselves
        trim(0)


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or `max` in it."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _cached_file_bytes(path: Path) -> int:
    fields = dict(line.split() for line in _text(path).splitlines() if len(line.split()) == 2)
    return int(fields.get("inactive_file", 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
