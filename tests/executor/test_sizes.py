"""The estimate from config.json against what is on the disk and what a layer takes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from ridgeline_contracts.kv import GroupId, KVDtype, KVKind
from ridgeline_engine.executors.architectures import kv_groups, read_shape
from ridgeline_engine.executors.sizes import SizeEstimate, estimate
from safetensors import safe_open

MakeFolder = Callable[..., Path]
CONTEXT_TOKENS = 2048
HEAD_DIM = 16


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def estimated(folder: Path, dtype: Literal["auto", "bf16", "fp32"], **changed: int) -> SizeEstimate:
    sizes = {"block_tokens": 16, "max_batch": 8, "max_step_tokens": 256} | changed
    return estimate(config_of(folder), dtype=dtype, **sizes)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="llama"),
        pytest.param({"tied_embeddings": True}, id="tied"),
        pytest.param({"model_type": "qwen2"}, id="qwen2"),
        pytest.param({"model_type": "qwen3"}, id="qwen3"),
    ],
)
def test_weight_bytes_are_those_of_the_checkpoint_with_norms_in_fp32(
    make_folder: MakeFolder, options: dict[str, Any]
) -> None:
    folder = make_folder(**options)
    expected = CONTEXT_TOKENS * HEAD_DIM * 4
    with safe_open(folder / "model.safetensors", framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            size = 1
            for side in file.get_slice(name).get_shape():
                size *= side
            expected += size * (4 if "norm" in name else 2)
    assert estimated(folder, "bf16").weight_bytes == expected


def test_fp32_doubles_matrices_and_kv(make_folder: MakeFolder) -> None:
    folder = make_folder()
    narrow, wide = estimated(folder, "bf16"), estimated(folder, "fp32")
    assert wide.loading_bytes == 2 * narrow.loading_bytes
    assert wide.kv_block_bytes == {GroupId(0): 2 * narrow.kv_block_bytes[GroupId(0)]}
    # layers x heads x (key, value) x tokens x head_dim x bytes
    assert narrow.kv_block_bytes == {GroupId(0): 2 * 2 * 2 * 16 * HEAD_DIM * 2}


def test_activations_grow_with_the_step_and_the_total_with_the_blocks(make_folder: MakeFolder) -> None:
    folder = make_folder()
    small, large = estimated(folder, "auto"), estimated(folder, "auto", max_step_tokens=4096)
    assert large.activation_bytes > small.activation_bytes
    grown = small.total_bytes(kv_blocks=30) - small.total_bytes(kv_blocks=10)
    assert grown == 20 * small.kv_block_bytes[GroupId(0)]


def test_layers_with_a_window_are_a_group_of_their_own(make_folder: MakeFolder) -> None:
    config = {
        "use_sliding_window": True,
        "sliding_window": 32,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    shape = read_shape(config_of(make_folder(model_type="qwen2", layers=3, config=config)))
    full, window = kv_groups(shape, block_tokens=16, dtype=KVDtype.BF16)
    assert (full.kind, full.layers, full.window_tokens) == (KVKind.FULL, (1,), None)
    assert (window.kind, window.layers, window.window_tokens) == (KVKind.WINDOW, (0, 2), 32)


def test_the_estimate_imports_no_torch() -> None:
    code = "import sys, ridgeline_engine.executors.sizes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
