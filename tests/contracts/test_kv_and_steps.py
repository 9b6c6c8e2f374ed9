"""KV groups and step shapes: arithmetic that memory, transfer and scheduling rest on."""

import pytest
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind
from ridgeline_contracts.step import StepCoefficients, StepModel, StepShape

GROUP = KVGroup(GroupId(0), (0, 1, 2), KVKind.FULL, 16, 4, 64, KVDtype.BF16)
LATENT = KVGroup(GroupId(1), (3,), KVKind.LATENT, 64, 1, 576, KVDtype.FP8, scales=2)


@pytest.mark.parametrize(
    ("group", "layer_bytes", "block_bytes", "token_bytes"),
    [
        pytest.param(GROUP, 4 * 2 * 16 * 64 * 2, 3 * 16_384, 3_072.0, id="full"),
        pytest.param(LATENT, 64 * 576 + 2 * 4, 36_872, 576.125, id="latent-with-scales"),
    ],
)
def test_bytes(group: KVGroup, layer_bytes: int, block_bytes: int, token_bytes: float) -> None:
    assert (group.layer_block_bytes, group.block_bytes, group.token_bytes) == (
        layer_bytes,
        block_bytes,
        token_bytes,
    )


def test_heads_are_outermost_so_that_a_split_is_contiguous() -> None:
    head, part, token, dim = GROUP.strides
    assert (head, part, token, dim) == (2 * 16 * 64, 16 * 64, 64, 1)
    assert LATENT.strides[0] == LATENT.strides[1] == 64 * 576


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (160, 10)])
def test_blocks_for_tokens(tokens: int, blocks: int) -> None:
    assert GROUP.blocks_for(tokens) == blocks


@pytest.mark.parametrize(("dtype", "size"), [(KVDtype.FP32, 4), (KVDtype.BF16, 2), (KVDtype.FP8, 1)])
def test_element_sizes(dtype: KVDtype, size: int) -> None:
    assert dtype.bytes_per_element == size


def test_coefficients_are_a_step_model_linear_in_its_terms() -> None:
    model: StepModel = StepCoefficients(1.0, 2.0, 3.0, 4.0, 5.0)
    assert model.predict_ms(StepShape()) == 1.0
    assert model.predict_ms(StepShape(10, 20, 30, 40)) == 1.0 + 20.0 + 60.0 + 120.0 + 200.0
