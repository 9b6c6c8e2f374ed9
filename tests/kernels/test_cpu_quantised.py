"""Weights of 8 and 4 bits."""

import pytest
import torch
from ridgeline_contracts.errors import InvariantError
from ridgeline_kernels.cpu import BigPages, CpuOps, PackedLinear, QuantFormat
from ridgeline_kernels.cpu import quant_packing as packing
from ridgeline_kernels.cpu.quantised import RoundingError, quantise
from ridgeline_kernels.cpu.reference import LARGEST_CODE, quantised_linear
from torch import Tensor

FORMATS = [
    pytest.param(QuantFormat(bits, group), id=f"int{bits}-groups-of-{group}")
    for bits in (8, 4)
    for group in (32, 64, 128)
]
SHAPES = [
    pytest.param(1, 1, id="one-by-one"),
    pytest.param(16, 32, id="one-panel"),
    pytest.param(17, 33, id="edges-everywhere"),
    pytest.param(250, 1300, id="several-pieces"),
]


def packed(ops: CpuOps, weight: Tensor, quant: QuantFormat, bias: Tensor | None = None) -> PackedLinear:
    return ops.pack_quantised(weight, quant, bias=bias)[0]


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize(("out", "features"), SHAPES)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 12, 13, 49, 100])
def test_a_product_is_that_of_the_reference(
    ops: CpuOps, quant: QuantFormat, out: int, features: int, rows: int
) -> None:
    weight, bias, x = torch.randn(out, features), torch.randn(out), torch.randn(rows, features)
    wanted = quantised_linear(x, quantise(weight, quant), bias, rounds=ops.native)
    found = packed(ops, weight, quant, bias)(x)
    # A hair's breadth from the middle an activation may be rounded the other way.
    unit = float(x.abs().max() * weight.abs().max()) / LARGEST_CODE
    assert (found - wanted).abs().max() <= 3e-6 * max(1.0, float(wanted.abs().max())) + unit


@pytest.mark.parametrize("quant", FORMATS)
def test_rounding_activations_to_16_bits_costs_less_than_bf16_would(
    best_ops: CpuOps, quant: QuantFormat
) -> None:
    weight, x = torch.randn(64, 512), torch.randn(20, 512) * torch.logspace(-3, 3, 512)
    exact = x.double() @ quantise(weight, quant).weight().double().T
    error = (packed(best_ops, weight, quant)(x) - exact).abs().max()
    of_bf16 = (x.bfloat16().double() @ quantise(weight, quant).weight().double().T - exact).abs().max()
    assert error < of_bf16 / 20


@pytest.mark.parametrize("quant", FORMATS)
def test_a_row_is_the_same_bits_alone_and_in_any_batch(ops: CpuOps, quant: QuantFormat) -> None:
    if not ops.native:
        assert "reference" in ops.description  # torch's products make no such promise
        return
    linear = packed(ops, torch.randn(200, 700), quant, torch.randn(200))
    x = torch.randn(150, 700)
    alone = torch.cat([linear(row.unsqueeze(0)) for row in x])
    for rows in (2, 3, 4, 5, 6, 7, 8, 13, 32, 48, 49, 150):
        assert torch.equal(linear(x[:rows]), alone[:rows]), rows


@pytest.mark.parametrize("quant", FORMATS)
@pytest.mark.parametrize(("out", "features"), SHAPES)
def test_packing_loses_nothing(quant: QuantFormat, out: int, features: int) -> None:
    found = quantise(torch.randn(out, features), quant)
    to = packing.empty_packed(out, features, quant, BigPages())
    packing.pack_panels(found, quant, to)
    ids = torch.randperm(out)
    assert torch.equal(packing.unpack_rows(to, ids, features, quant), found.weight()[ids])


@pytest.mark.parametrize("quant", FORMATS)
def test_the_weight_gives_its_rows_back_as_an_embedding_table(ops: CpuOps, quant: QuantFormat) -> None:
    weight, ids = torch.randn(50, 40).bfloat16(), torch.tensor([0, 49, 17, 17])
    assert torch.equal(packed(ops, weight, quant).weight_rows(ids), quantise(weight, quant).weight()[ids])


@pytest.mark.parametrize("quant", FORMATS)
def test_weights_move_by_half_a_step_and_the_largest_of_a_group_by_little_more(quant: QuantFormat) -> None:
    weight = torch.randn(40, 256) * torch.logspace(-8, 4, 40).unsqueeze(1)
    found = quantise(weight, quant)
    steps = found.scales.float().abs().repeat_interleave(quant.group, dim=1)
    moved = (found.weight() - weight).abs()
    # Half a step where nothing is clipped; what is clipped are the largest of a group.
    assert (moved <= steps * 0.501).float().mean() > 0.9
    if quant.bits == 8:
        # A scale is bf16: 128 codes of it may miss the largest weight by half of 1 / 256.
        assert bool((moved <= steps * 1.3).all())


def test_a_group_of_zeros_stays_zeros() -> None:
    weight = torch.randn(4, 128)
    weight[:, 32:64] = 0
    for bits in (8, 4):
        found = quantise(weight, QuantFormat(bits, 32)).weight()
        assert bool((found[:, 32:64] == 0).all())
        assert bool(found.isfinite().all())


def test_fewer_bits_and_larger_groups_cost_more() -> None:
    weight = torch.randn(64, 512)

    def error(bits: int, group: int) -> float:
        return RoundingError.of(weight, quantise(weight, QuantFormat(bits, group))).ratio

    assert error(8, 32) < error(8, 128) < 0.01 < error(4, 32) < error(4, 128) < 0.12


def test_the_error_of_a_large_weight_is_that_of_its_pieces_together(
    ops: CpuOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ridgeline_kernels.cpu.quant_forms.PIECE_WEIGHTS", 64 * 32)
    weight, quant = torch.randn(250, 64), QuantFormat(4, 32)
    linear, error = ops.pack_quantised(weight, quant)
    assert error.ratio == pytest.approx(RoundingError.of(weight, quantise(weight, quant)).ratio, rel=1e-5)
    assert torch.equal(linear.weight_rows(torch.arange(250)), quantise(weight, quant).weight())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_spoils_its_own_row_only(ops: CpuOps, bad: float) -> None:
    linear, x = packed(ops, torch.randn(40, 96), QuantFormat(8, 64)), torch.randn(7, 96)
    clean = linear(x)
    x[3, 70] = bad
    spoilt = linear(x)
    others = torch.tensor([0, 1, 2, 4, 5, 6])
    assert not bool(spoilt[3].isfinite().any())
    assert torch.equal(spoilt[others], clean[others])


@pytest.mark.parametrize(
    ("quant", "bytes_per_weight"),
    [
        (QuantFormat(8, 64), 1 + 2 / 64),
        (QuantFormat(4, 32), 0.5 + 4 / 32),
        (QuantFormat(4, 128), 0.5 + 4 / 128),
    ],
)
def test_bytes_are_those_of_codes_and_scales(
    ops: CpuOps, quant: QuantFormat, bytes_per_weight: float
) -> None:
    held = packed(ops, torch.randn(64, 256), quant).weight_bytes
    wide = 64 * 256 * (1 - quant.bits / 8)  # plain tensors hold a code a byte
    assert held == 64 * 256 * bytes_per_weight + (0 if ops.native else wide)


@pytest.mark.parametrize(("bits", "group"), [(5, 32), (8, 48), (4, 0)])
def test_a_format_without_a_kernel_is_refused(bits: int, group: int) -> None:
    with pytest.raises(InvariantError, match=f"{bits} bits in groups of {group} are not known"):
        QuantFormat(bits, group)


def test_a_weight_of_another_dtype_is_refused(ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match="fp32 or bf16"):
        packed(ops, torch.zeros(4, 4, dtype=torch.float16), QuantFormat(8, 32))
