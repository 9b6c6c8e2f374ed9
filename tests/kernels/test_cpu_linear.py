"""Linear layers on packed weights."""

import pytest
import torch
from ridgeline_contracts.errors import InvariantError
from ridgeline_kernels.cpu import CpuOps
from torch import Tensor
from torch.nn import functional

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
SHAPES = [
    pytest.param(1, 1, id="one-by-one"),
    pytest.param(16, 2, id="one-panel"),
    pytest.param(17, 33, id="edges-everywhere"),
    pytest.param(250, 1300, id="several-depth-blocks"),
    pytest.param(576, 576, id="whole-panels"),
]


def exact(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def assert_close(found: Tensor, wanted: Tensor) -> None:
    scale = max(1.0, wanted.abs().max().item())
    assert (found - wanted).abs().max().item() < 2e-6 * scale


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out", "features"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 32, 49, 100])
def test_a_packed_linear_equals_the_product_in_double_precision(
    ops: CpuOps, dtype: torch.dtype, out: int, features: int, rows: int
) -> None:
    weight, bias = torch.randn(out, features).to(dtype), torch.randn(out)
    x = torch.randn(rows, features)
    if dtype == torch.bfloat16:
        x = x.bfloat16().float()  # some forms round activations to the weight's dtype
    form = "native" if ops.native else "auto"
    if form == "auto" and dtype == torch.bfloat16:
        form = "torch-fp32"  # the others round results too
    assert_close(ops.pack_linear(weight, bias=bias, form=form)(x), exact(x, weight, bias))
    assert_close(ops.pack_linear(weight, form=form)(x), exact(x, weight, None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_rows_than_one_pass_takes_are_all_computed(best_ops: CpuOps, dtype: torch.dtype) -> None:
    weight, x = torch.randn(40, 24).to(dtype), torch.randn(2500, 24).bfloat16().float()
    found = best_ops.pack_linear(weight)(x)
    torch.testing.assert_close(found, exact(x, weight, None).float(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_bits_alone_and_in_any_batch(ops: CpuOps, dtype: torch.dtype) -> None:
    if not ops.native:
        assert "reference" in ops.description  # torch's products make no such promise
        return
    linear = ops.pack_linear(torch.randn(200, 1100).to(dtype), bias=torch.randn(200), form="native")
    x = torch.randn(150, 1100)
    alone = torch.cat([linear(row.unsqueeze(0)) for row in x])
    for rows in (2, 3, 4, 6, 7, 8, 13, 32, 48, 49, 150):
        assert torch.equal(linear(x[:rows]), alone[:rows]), rows


def test_strided_rows_are_read_and_written_in_place(ops: CpuOps) -> None:
    weight, x, out = torch.randn(20, 30), torch.randn(5, 64)[:, 10:40], torch.full((5, 40), 7.0)
    returned = ops.pack_linear(weight)(x, out[:, 10:30])
    assert returned.data_ptr() == out[:, 10:30].data_ptr()
    assert_close(out[:, 10:30], exact(x, weight, None))
    assert (out[:, :10] == 7).all()
    assert (out[:, 30:] == 7).all()


def test_no_rows_give_no_rows(ops: CpuOps) -> None:
    assert ops.pack_linear(torch.randn(20, 30))(torch.empty(0, 30)).shape == (0, 20)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [30, 31])
def test_the_weight_gives_its_rows_back_as_an_embedding_table(
    ops: CpuOps, dtype: torch.dtype, features: int
) -> None:
    weight = torch.randn(50, features).to(dtype)
    ids = torch.tensor([0, 49, 17, 17])
    assert torch.equal(ops.pack_linear(weight).weight_rows(ids), weight[ids].float())


def test_the_weight_is_kept_once(ops: CpuOps) -> None:
    weight = torch.randn(64, 32).bfloat16()
    assert ops.pack_linear(weight, form="native" if ops.native else "torch").weight_bytes == weight.nbytes


@pytest.mark.parametrize(
    ("x", "message"),
    [
        pytest.param(torch.zeros(3, 29), "fp32 .rows, 30.", id="wrong-width"),
        pytest.param(torch.zeros(3, 30, dtype=torch.bfloat16), "bfloat16", id="wrong-dtype"),
        pytest.param(torch.zeros(30, 3).T, "strides", id="transposed"),
    ],
)
def test_activations_that_do_not_fit_are_refused(ops: CpuOps, x: Tensor, message: str) -> None:
    with pytest.raises(InvariantError, match=message):
        ops.pack_linear(torch.randn(20, 30))(x)


def test_an_output_that_does_not_fit_is_refused(ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match=r"out must be fp32 \[3, 20\]"):
        ops.pack_linear(torch.randn(20, 30))(torch.zeros(3, 30), torch.zeros(3, 21))


@pytest.mark.parametrize("form", ["onednn", "torch"])
@pytest.mark.parametrize("rows", [1, 8, 40])
def test_the_library_forms_compute_the_same_product(best_ops: CpuOps, form: str, rows: int) -> None:
    weight, bias, x = torch.randn(70, 50), torch.randn(70), torch.randn(rows, 50)
    linear = best_ops.pack_linear(weight, bias=bias, form="onednn" if form == "onednn" else "torch")
    assert set(linear.form_names) == {form}
    torch.testing.assert_close(linear(x), exact(x, weight, bias).float(), rtol=1e-4, atol=1e-4)


def test_an_onednn_weight_says_that_it_cannot_give_rows_back(best_ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match="embedding table apart"):
        best_ops.pack_linear(torch.randn(70, 50), form="onednn").weight_rows(torch.tensor([0]))


def test_a_form_that_cannot_work_here_is_refused_by_name(reference_ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match=r"native form .* does not work here; take one of"):
        reference_ops.pack_linear(torch.randn(4, 4), form="native")


def test_a_weight_of_another_dtype_is_refused(ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match="fp32 or bf16"):
        ops.pack_linear(torch.zeros(4, 4, dtype=torch.float16))
