"""Memory for KV: zeroed, aligned, bounded, shared where it should be, and gone after close."""

import mmap
import multiprocessing
from pathlib import Path

import numpy as np
import pytest
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from ridgeline_transfer.allocator import PrivateAllocator, SharedMemoryAllocator, SharedRegion

ALLOCATORS = [
    pytest.param(PrivateAllocator, id="private"),
    pytest.param(SharedMemoryAllocator, id="shared"),
]
Allocator = type[PrivateAllocator] | type[SharedMemoryAllocator]


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, dtype=np.uint8).ctypes.data)


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_regions_are_zeroed_writable_and_page_aligned(kind: Allocator) -> None:
    allocator = kind()
    first, second = allocator.allocate(100), allocator.allocate(3 * mmap.PAGESIZE + 1)
    assert (len(first), len(second)) == (100, 3 * mmap.PAGESIZE + 1)
    assert address(first) % mmap.PAGESIZE == address(second) % mmap.PAGESIZE == 0
    assert not any(second)
    second[-1] = 7
    assert bytes(first) == bytes(100)
    allocator.close()


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_the_limit_bounds_the_sum_and_is_named(kind: Allocator) -> None:
    allocator = kind(limit_bytes=1000)
    allocator.allocate(600)
    with pytest.raises(OutOfMemory, match="500 bytes of KV do not fit: 600 of the limit of 1000"):
        allocator.allocate(500)
    allocator.allocate(400)
    allocator.close()
    allocator.allocate(1000)
    allocator.close()


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_what_the_system_cannot_give_is_out_of_memory(kind: Allocator) -> None:
    allocator = kind()
    with pytest.raises(OutOfMemory, match=f"{1 << 62} bytes"):
        allocator.allocate(1 << 62)
    with pytest.raises(InvariantError, match="size_bytes=0"):
        allocator.allocate(0)
    allocator.close()


@pytest.mark.parametrize("kind", ALLOCATORS)
def test_closing_under_an_array_is_refused_and_can_be_tried_again(kind: Allocator) -> None:
    allocator = kind()
    array = np.frombuffer(allocator.allocate(64), dtype=np.uint8)
    with pytest.raises(InvariantError, match="while arrays still view it"):
        allocator.close()
    array[0] = 1
    del array
    allocator.close()
    allocator.close()


def test_a_shared_region_is_one_memory_on_both_sides() -> None:
    allocator = SharedMemoryAllocator()
    view = allocator.allocate(mmap.PAGESIZE)
    (region,) = allocator.regions
    other = region.open()
    view[10] = 42
    assert other[10] == 42
    other[11] = 43
    assert view[11] == 43
    other.close()
    view.release()
    allocator.close()
    with pytest.raises(FileNotFoundError):
        region.open()


def _read_and_answer(path: str, size_bytes: int) -> None:
    memory = SharedRegion(Path(path), size_bytes).open()
    memory[1] = memory[0] + 1
    memory.close()


def test_another_process_reads_and_writes_a_shared_region() -> None:
    allocator = SharedMemoryAllocator()
    view = allocator.allocate(64)
    view[0] = 8
    (region,) = allocator.regions
    process = multiprocessing.get_context("spawn").Process(
        target=_read_and_answer, args=(str(region.path), region.size_bytes)
    )
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert view[1] == 9
    view.release()
    allocator.close()
    assert allocator.regions == ()
