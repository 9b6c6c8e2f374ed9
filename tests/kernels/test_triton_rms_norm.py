"""The Triton norm, run by Triton's interpreter on CPU tensors, against its torch reference."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from ridgeline_contracts.errors import InvariantError, Unsupported

MODULE = "ridgeline_kernels.triton.rms_norm"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    """The module as imported with the interpreter on; forgotten afterwards, for whoever wants a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        sys.modules.pop(MODULE, None)
        yield importlib.import_module(MODULE)
        sys.modules.pop(MODULE, None)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for the last bit: sums go in another order, and the interpreter cuts to bf16 where a GPU rounds."""
    tolerance = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[found.dtype]
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [1, 2, 31, 64, 576, 1000, 1025])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_norm_equals_its_reference_on_awkward_sizes(
    kernel: ModuleType, dtype: torch.dtype, hidden: int, rows: int
) -> None:
    x, weight = (torch.randn(rows, hidden) * 3).to(dtype), torch.randn(hidden).to(dtype)
    found = kernel.rms_norm(x, weight, 1e-5)
    assert found.dtype == dtype
    close(found, kernel.rms_norm_reference(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("hidden", [5, 64, 577])
def test_the_residual_is_summed_in_place_and_then_normed(
    kernel: ModuleType, dtype: torch.dtype, hidden: int
) -> None:
    x, weight = torch.randn(4, hidden).to(dtype), torch.randn(hidden).to(dtype)
    residual = torch.randn(4, hidden).to(dtype)
    expected = residual.clone()
    wanted = kernel.rms_norm_reference(x, weight, 1e-6, expected)
    close(kernel.rms_norm(x, weight, 1e-6, residual), wanted)
    close(residual, expected)


def test_rows_may_lie_apart(kernel: ModuleType) -> None:
    wide, weight = torch.randn(3, 100), torch.randn(40)
    residual = torch.zeros(3, 90)
    before = wide.clone()
    found = kernel.rms_norm(wide[:, 7:47], weight, 1e-5, residual[:, 5:45])
    close(found, kernel.rms_norm_reference(before[:, 7:47], weight, 1e-5))
    assert torch.equal(residual[:, 5:45], before[:, 7:47])
    assert torch.equal(wide, before)
    assert not residual[:, :5].any()
    assert not residual[:, 45:].any()


def test_no_rows_give_no_rows(kernel: ModuleType) -> None:
    assert kernel.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-5).shape == (0, 8)


def test_what_does_not_fit_is_refused(kernel: ModuleType) -> None:
    x, weight = torch.zeros(2, 8), torch.ones(8)
    with pytest.raises(InvariantError, match="weight must be"):
        kernel.rms_norm(x, torch.ones(9), 1e-5)
    with pytest.raises(InvariantError, match="residual must be"):
        kernel.rms_norm(x, weight, 1e-5, torch.zeros(3, 8))
    with pytest.raises(InvariantError, match="one dtype"):
        kernel.rms_norm(x, weight, 1e-5, torch.zeros(2, 8, dtype=torch.bfloat16))
    with pytest.raises(InvariantError, match="x must be"):
        kernel.rms_norm(torch.zeros(8, 2).T, weight, 1e-5)
    with pytest.raises(Unsupported, match="65537 columns"):
        kernel.rms_norm(torch.zeros(1, 65537), torch.ones(65537), 1e-5)
