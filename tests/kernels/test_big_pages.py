"""Memory for weights."""

import pytest
import torch
from ridgeline_kernels.cpu import BigPages
from ridgeline_kernels.cpu.big_pages import ALIGNMENT_BYTES, HUGE_PAGE_BYTES, SMALLEST_BYTES


def test_tensors_lie_one_after_another_and_do_not_overlap() -> None:
    memory = BigPages(chunk_bytes=4 * SMALLEST_BYTES)
    first = memory.empty((SMALLEST_BYTES + 3,), torch.uint8)
    second = memory.empty((SMALLEST_BYTES // 8, 4), torch.bfloat16)
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all()
    assert (second == 2).all()
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    assert 0 <= second.data_ptr() - first.data_ptr() - first.nbytes < ALIGNMENT_BYTES
    assert second.data_ptr() % ALIGNMENT_BYTES == 0


def test_a_full_chunk_is_followed_by_another_and_a_large_tensor_has_its_own() -> None:
    memory = BigPages(chunk_bytes=2 * SMALLEST_BYTES)
    tensors = [memory.empty((SMALLEST_BYTES,), torch.uint8).fill_(index) for index in range(5)]
    large = memory.empty((10 * SMALLEST_BYTES,), torch.uint8).fill_(9)
    assert [int(tensor.unique()) for tensor in tensors] == [0, 1, 2, 3, 4]
    assert large.data_ptr() % HUGE_PAGE_BYTES == 0


@pytest.mark.parametrize("shape", [(0,), (3, 5), (0, 7)])
def test_small_tensors_are_ordinary(shape: tuple[int, ...]) -> None:
    found = BigPages().empty(shape, torch.float32)
    assert found.shape == shape
    assert found.is_contiguous()


def test_a_tensor_outlives_the_memory_that_it_came_from() -> None:
    tensor = BigPages().empty((SMALLEST_BYTES,), torch.uint8).fill_(7)
    assert (tensor == 7).all()
