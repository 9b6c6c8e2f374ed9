"""The memory that holds KV. Both allocators satisfy the engine's `KVAllocator`."""

import contextlib
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from ridgeline_contracts.errors import InvariantError, OutOfMemory


class _Regions:
    """Mapped regions of one allocator, with a limit on their sum."""

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._mapped: list[tuple[mmap.mmap, memoryview]] = []

    @property
    def used_bytes(self) -> int:
        return sum(len(view) for _, view in self._mapped)

    def check(self, size_bytes: int) -> None:
        if size_bytes < 1:
            raise InvariantError(f"size_bytes={size_bytes} is no amount of memory")
        limit = self._limit_bytes
        if limit is not None and self.used_bytes + size_bytes > limit:
            raise OutOfMemory(
                f"{size_bytes} bytes of KV do not fit: {self.used_bytes} of the limit of {limit} bytes "
                "are taken; lower kv_blocks or raise the limit"
            )

    def add(self, pages: mmap.mmap) -> memoryview:
        view = memoryview(pages)
        self._mapped.append((pages, view))
        return view

    def close(self) -> None:
        while self._mapped:
            pages, view = self._mapped[-1]
            try:
                view.release()
                pages.close()
            except BufferError as error:
                raise InvariantError(
                    f"KV memory of {len(pages)} bytes is closed while arrays still view it: drop those first"
                ) from error
            self._mapped.pop()


class PrivateAllocator:
    """Anonymous pages of this process, huge ones where the kernel has them. `limit_bytes` bounds their
    sum."""

    def __init__(self, *, limit_bytes: int | None = None) -> None:
        self._regions = _Regions(limit_bytes)

    def allocate(self, size_bytes: int) -> memoryview:
        """Zeroed, writable, page-aligned. Raises OutOfMemory naming size and limit."""
        self._regions.check(size_bytes)
        try:
            pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise _refused(size_bytes, error) from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _advise_huge(pages)
        return self._regions.add(pages)

    def close(self) -> None:
        """Unmaps all. Raises InvariantError, and leaves the rest mapped, while an array still views a
        region."""
        self._regions.close()


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """A region as another process of the same user opens it, for as long as the owner has it open."""

    path: Path
    size_bytes: int

    def open(self) -> mmap.mmap:
        """Maps the owner's memory, read and write. Raises FileNotFoundError once the owner closed it or
        died."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(descriptor, self.size_bytes, flags=mmap.MAP_SHARED)
        finally:
            os.close(descriptor)


class SharedMemoryAllocator:
    """Memory that other processes can map, by way of the owner's descriptor in /proc.

    It has no name in any file system: nothing is left behind when a worker is killed, and the size of
    /dev/shm, which is small in containers, is no limit.
    """

    def __init__(self, *, limit_bytes: int | None = None, label: str = "ridgeline-kv") -> None:
        self._label = label
        self._regions = _Regions(limit_bytes)
        self._descriptors: list[tuple[int, int]] = []

    @property
    def regions(self) -> tuple[SharedRegion, ...]:
        """In the order of allocation."""
        own = Path("/proc") / str(os.getpid()) / "fd"
        return tuple(SharedRegion(own / str(descriptor), size) for descriptor, size in self._descriptors)

    def allocate(self, size_bytes: int) -> memoryview:
        """Zeroed, writable, page-aligned. Raises OutOfMemory naming size and limit."""
        self._regions.check(size_bytes)
        descriptor = os.memfd_create(self._label, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_bytes)
            pages = mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED)
        except (OSError, OverflowError) as error:
            os.close(descriptor)
            raise _refused(size_bytes, error) from error
        self._descriptors.append((descriptor, size_bytes))
        return self._regions.add(pages)

    def close(self) -> None:
        """Unmaps all; no one can open the regions any more. Raises InvariantError while an array views
        one."""
        while self._descriptors:
            os.close(self._descriptors.pop()[0])
        self._regions.close()


def _refused(size_bytes: int, error: Exception) -> OutOfMemory:
    return OutOfMemory(f"the system gives no {size_bytes} bytes of memory for KV ({error}): lower kv_blocks")


def _advise_huge(pages: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a kernel without them: small pages work as well
        pages.madvise(mmap.MADV_HUGEPAGE)
