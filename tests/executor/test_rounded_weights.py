"""int8 and int4 weights: what the estimate says of them, where they run, and that they still know the model."""

import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVDtype
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.sizes import WeightsSetting, estimate
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.linear import Linear
from ridgeline_engine.executors.torch_executor.loading import LoadedModel, load_model
from ridgeline_engine.executors.torch_executor.native_ops import NativeMatrix
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_testing.executor_driver import ExecutorDriver
from ridgeline_transfer.allocator import PrivateAllocator

ROUNDED: tuple[WeightsSetting, ...] = ("int8", "int4")
CONTEXT_TOKENS = 256


def load(folder: Path, cache_dir: Path, weights: WeightsSetting) -> LoadedModel:
    settings = TorchSettings(
        kv_blocks=8, cache_dir=cache_dir, weights=weights, device="cpu", max_context_tokens=CONTEXT_TOKENS
    )
    return load_model(load_model_folder(folder), settings, allocator=PrivateAllocator(), clock=SystemClock())


@pytest.mark.parametrize("weights", ROUNDED)
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"tied_embeddings": True}, id="tied"),
        pytest.param(
            {"model_type": "qwen2", "hidden": 80}, id="biases-an-embedding-apart-and-partial-groups"
        ),
    ],
)
def test_the_estimate_is_what_the_loaded_model_holds(
    make_folder: Callable[..., Path], kernel_cache: Path, options: dict[str, Any], weights: WeightsSetting
) -> None:
    folder = make_folder(**options)
    model = load(folder, kernel_cache, weights)
    shape, held = model.shape, model.decoder.weights
    linears = [held.head]
    for layer in held.layers:
        linears += [layer.qkv, layer.output, layer.gate_up, layer.down]
    matrices = sum(_packed_bytes(linear) for linear in linears)
    biases = shape.layers * shape.qkv_width * 4 if shape.qkv_bias else 0
    table = 0 if shape.tied_embeddings else shape.vocab_tokens * shape.hidden * 2
    norms = (2 * shape.layers + 1) * shape.hidden * 4
    rotations = CONTEXT_TOKENS * shape.head_dim * 4
    told = estimate(
        json.loads((folder / "config.json").read_text()),
        dtype="bf16",
        weights=weights,
        block_tokens=16,
        max_batch=8,
        max_step_tokens=256,
        max_context_tokens=CONTEXT_TOKENS,
    )
    assert told.weight_bytes == matrices + biases + table + norms + rotations
    assert told.second_form_bytes == 0
    assert model.groups[0].dtype is KVDtype.BF16


def _packed_bytes(linear: Linear) -> int:
    assert isinstance(linear.matrix, NativeMatrix)
    return linear.matrix.packed.weight_bytes


def test_int4_holds_the_head_in_8_bits(make_folder: Callable[..., Path], kernel_cache: Path) -> None:
    weights = load(make_folder(), kernel_cache, "int4").decoder.weights
    assert weights.head.weight_format is WeightFormat.INT8
    assert weights.layers[0].down.weight_format is WeightFormat.INT4


@pytest.mark.parametrize("weights", ROUNDED)
def test_the_model_says_what_it_holds_and_what_rounding_cost(
    make_folder: Callable[..., Path],
    make_executor: Callable[..., TorchExecutor],
    caplog: pytest.LogCaptureFixture,
    weights: WeightsSetting,
) -> None:
    with caplog.at_level(logging.INFO):
        executor = make_executor(make_folder(), dtype="bf16", weights=weights)
    assert executor.capabilities.weights_dtype == weights
    (line,) = [each for each in caplog.messages if f"format={weights}" in each]
    ratio = float(line.rpartition("error_ratio=")[2])
    assert 0 < ratio < {"int8": 0.01, "int4": 0.12}[weights]


def test_a_sequence_gives_the_same_tokens_alone_and_among_others(
    make_folder: Callable[..., Path], make_executor: Callable[..., TorchExecutor]
) -> None:
    folder, drawn = make_folder(), random.Random(6)
    prompts = [[drawn.randrange(3, 512) for _ in range(length)] for length in (5, 33, 17)]
    together = ExecutorDriver(make_executor(folder, dtype="bf16", weights="int4", deterministic=True))
    slots = [together.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    found = together.generate(slots, 10, chunk_tokens=16)
    for prompt, tokens in zip(prompts, found, strict=True):
        alone = ExecutorDriver(make_executor(folder, dtype="bf16", weights="int4", deterministic=True))
        assert alone.generate([alone.admit(0, prompt)], 10) == [tokens]


def test_operators_that_do_not_know_them_refuse_by_name() -> None:
    with pytest.raises(SettingsError, match="weights=int8 run on the CPU's kernels"):
        TorchOps(torch.float32).pack_linear(torch.zeros(4, 4), held=WeightFormat.INT8)


def test_a_format_that_is_not_known_is_refused(kernel_cache: Path) -> None:
    with pytest.raises(SettingsError, match="weights='int2' is not known"):
        TorchSettings(kv_blocks=1, cache_dir=kernel_cache, weights="int2")  # type: ignore[arg-type]
