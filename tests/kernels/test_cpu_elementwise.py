"""Norm, gated activation, rotary embedding and the store into the cache."""

import pytest
import torch
from ridgeline_contracts.errors import InvariantError
from ridgeline_kernels.cpu import CpuOps
from torch import Tensor

SIZES = [1, 3, 8, 16, 37, 576]
ROWS = [1, 2, 9, 130]


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_rms_norm_divides_by_the_root_mean_square(ops: CpuOps, rows: int, hidden: int) -> None:
    x, weight = torch.randn(rows, hidden) * 3, torch.randn(hidden)
    wanted = x.double() / (x.double().square().mean(1, keepdim=True) + 1e-5).sqrt() * weight
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), wanted.float())


@pytest.mark.parametrize("hidden", SIZES)
def test_rms_norm_adds_to_the_residual_in_place_first(ops: CpuOps, hidden: int) -> None:
    x, weight, residual = torch.randn(5, hidden), torch.randn(hidden), torch.randn(5, hidden)
    total = residual + x
    found = ops.rms_norm(x, weight, 1e-6, residual)
    assert torch.equal(residual, total)
    torch.testing.assert_close(found, ops.rms_norm(total, weight, 1e-6))


def test_rms_norm_reads_strided_rows_and_may_write_over_its_input(ops: CpuOps) -> None:
    wide = torch.randn(4, 50)
    weight = torch.randn(20)
    wanted = ops.rms_norm(wide[:, 5:25].contiguous(), weight, 1e-5)
    torch.testing.assert_close(ops.rms_norm(wide[:, 5:25], weight, 1e-5), wanted)
    x = wide[:, 5:25].contiguous()
    assert ops.rms_norm(x, weight, 1e-5, out=x) is x
    torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize("ffn", SIZES)
@pytest.mark.parametrize("rows", ROWS)
def test_silu_mul_gates_the_second_half_by_the_first(ops: CpuOps, rows: int, ffn: int) -> None:
    gate_up = torch.randn(rows, 2 * ffn) * 5
    gate, up = gate_up.double().chunk(2, dim=1)
    torch.testing.assert_close(ops.silu_mul(gate_up), (gate / (1 + (-gate).exp()) * up).float())


def test_silu_mul_stays_finite_far_from_zero(ops: CpuOps) -> None:
    gate = torch.tensor([[-1e4, -200.0, -90.0, -87.0, 0.0, 87.0, 200.0, 1e4]])
    found = ops.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(found, gate.double().sigmoid().float() * gate, atol=1e-30, rtol=1e-5)


def rope_case(rows: int, heads: tuple[int, int, int], dtype: torch.dtype) -> dict[str, Tensor]:
    query_heads, kv_heads, head_dim = heads
    angles = torch.rand(40, head_dim // 2) * 6
    return {
        "qkv": torch.randn(rows, (query_heads + 2 * kv_heads) * head_dim),
        "positions": torch.randint(0, 40, (rows,), dtype=torch.int32),
        "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
        "kv_layer": torch.full((30, kv_heads, 2, 8, head_dim), 9.0, dtype=dtype),
        "slot_mapping": torch.randperm(240)[:rows],
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(9, 3, 64), (2, 2, 2), (8, 1, 6), (4, 2, 80)], ids=str)
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_rope_turns_pairs_of_halves_and_stores_keys_and_values(
    ops: CpuOps, dtype: torch.dtype, heads: tuple[int, int, int], rows: int
) -> None:
    query_heads, kv_heads, head_dim = heads
    case = rope_case(rows, heads, dtype)
    case["slot_mapping"][rows // 2] = -1
    before = case["qkv"].clone().view(rows, -1, head_dim)
    ops.rope_store(**case, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)

    angle = torch.polar(torch.ones(()), torch.zeros(()))
    cos, sin = case["cos_sin"][case["positions"].long()].chunk(2, dim=1)
    angle = torch.complex(cos, sin).unsqueeze(1)
    turned = torch.complex(*before[:, : query_heads + kv_heads].chunk(2, dim=2)) * angle
    wanted = torch.cat(
        (torch.cat((turned.real, turned.imag), dim=2), before[:, query_heads + kv_heads :]), dim=1
    )
    torch.testing.assert_close(case["qkv"].view(rows, -1, head_dim), wanted)

    cache = torch.full_like(case["kv_layer"], 9.0)
    stored = case["qkv"].view(rows, -1, head_dim).to(dtype)
    for row, slot in enumerate(case["slot_mapping"].tolist()):
        if slot >= 0:
            cache[slot // 8, :, 0, slot % 8] = stored[row, query_heads : query_heads + kv_heads]
            cache[slot // 8, :, 1, slot % 8] = stored[row, query_heads + kv_heads :]
    assert torch.equal(case["kv_layer"], cache)


def test_a_bf16_cache_rounds_to_nearest_even_and_keeps_what_is_not_a_number(ops: CpuOps) -> None:
    halfway = [1.0 + 2**-8, 1.0 + 3 * 2**-8, float("nan"), float("inf"), -0.0, 1e-40, 3.3e38, 3.4e38]
    case = rope_case(1, (1, 1, 8), torch.bfloat16)
    case["qkv"][0, 16:] = torch.tensor(halfway)
    ops.rope_store(**case, query_heads=1, kv_heads=1, head_dim=8)
    slot = int(case["slot_mapping"][0])
    found = case["kv_layer"][slot // 8, 0, 1, slot % 8]
    torch.testing.assert_close(found, torch.tensor(halfway).bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        pytest.param("positions", 40, "position 40 is outside the table of 40", id="position-past-the-table"),
        pytest.param("positions", -1, "position -1 is outside", id="negative-position"),
        pytest.param("slot_mapping", 240, "slot 240 is outside the table of 240", id="slot-past-the-cache"),
    ],
)
def test_a_fault_in_any_row_leaves_everything_as_it_was(
    ops: CpuOps, name: str, value: int, message: str
) -> None:
    case = rope_case(6, (4, 2, 16), torch.float32)
    case[name][5] = value
    before = {key: tensor.clone() for key, tensor in case.items()}
    with pytest.raises(InvariantError, match=message):
        ops.rope_store(**case, query_heads=4, kv_heads=2, head_dim=16)
    assert all(torch.equal(case[key], before[key]) for key in case)


def test_tensors_that_do_not_fit_are_refused(ops: CpuOps) -> None:
    with pytest.raises(InvariantError, match=r"weight must be torch\.float32"):
        ops.rms_norm(torch.zeros(2, 8), torch.zeros(9), 1e-5)
    with pytest.raises(InvariantError, match="even number"):
        ops.silu_mul(torch.zeros(2, 9))
    case = rope_case(2, (4, 2, 16), torch.float32)
    with pytest.raises(InvariantError, match="slot_mapping must be"):
        ops.rope_store(
            **(case | {"slot_mapping": case["slot_mapping"].int()}), query_heads=4, kv_heads=2, head_dim=16
        )
    with pytest.raises(InvariantError, match="kv_layer must be"):
        ops.rope_store(
            **(case | {"kv_layer": case["kv_layer"].transpose(0, 3)}), query_heads=4, kv_heads=2, head_dim=16
        )
