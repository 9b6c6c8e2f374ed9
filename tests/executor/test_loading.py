"""From a folder to weights: shards, dtypes, and errors that name what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import OutOfMemory, RidgelineError, SettingsError, Unsupported
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_engine.executors.torch_executor import loading
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_testing.executor_driver import ExecutorDriver
from ridgeline_transfer.allocator import PrivateAllocator
from safetensors.torch import load_file, save_file

MakeFolder = Callable[..., Path]
MakeExecutor = Callable[..., TorchExecutor]


def first_tokens(executor: TorchExecutor) -> list[int]:
    driver = ExecutorDriver(executor)
    return driver.generate([driver.admit(0, (5, 6, 7))], 6)[0]


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path)


def load(folder: Path, **fields: Any) -> None:
    settings = TorchSettings(
        **({"kv_blocks": 4, "cache_dir": folder, "dtype": "fp32", "device": "cpu"} | fields)
    )
    loading.load_model(
        load_model_folder(folder),
        settings,
        allocator=PrivateAllocator(limit_bytes=1 << 20),
        clock=SystemClock(),
    )


@pytest.fixture(autouse=True)
def plain_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tested here does not depend on them, and these need no compiler."""
    monkeypatch.setattr(loading, "choose_ops", lambda *_args, **_options: TorchOps(torch.float32))


def test_shards_give_what_one_file_gives(make_folder: MakeFolder, make_executor: MakeExecutor) -> None:
    folder = make_folder()
    expected = first_tokens(make_executor(folder))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, own in shards.items():
        save_file({name: tensors[name] for name in own}, folder / shard)
    index = {"weight_map": {name: shard for shard, own in shards.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert first_tokens(make_executor(folder)) == expected


@pytest.mark.parametrize(
    ("stated", "setting", "expected"),
    [
        pytest.param("bfloat16", "auto", "bf16", id="bf16-stays"),
        pytest.param("float16", "auto", "bf16", id="fp16-becomes-bf16"),
        pytest.param("float32", "auto", "fp32", id="fp32-stays"),
        pytest.param("bfloat16", "fp32", "fp32", id="exact-mode-widens"),
        pytest.param("float32", "bf16", "bf16", id="rounded-on-request"),
    ],
)
def test_the_dtype_is_the_checkpoints_unless_one_is_asked_for(
    make_folder: MakeFolder, make_executor: MakeExecutor, stated: str, setting: str, expected: str
) -> None:
    folder = make_folder(config={"torch_dtype": stated})
    assert make_executor(folder, dtype=setting).capabilities.weights_dtype == expected


def test_weights_of_another_shape_name_the_tensor_and_both_shapes(make_folder: MakeFolder) -> None:
    folder = make_folder(config={"intermediate_size": 96})
    with pytest.raises(SettingsError, match=r"layers\.0\.mlp\.gate_proj\.weight .* \[128, 64\].* \[96, 64\]"):
        load(folder)


def test_a_missing_tensor_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder()
    rewrite(
        folder,
        lambda tensors: {name: each for name, each in tensors.items() if "layers.1.mlp.up" not in name},
    )
    with pytest.raises(SettingsError, match=r"weight model\.layers\.1\.mlp\.up_proj\.weight is not in"):
        load(folder)


def test_a_tensor_of_whole_numbers_is_refused(make_folder: MakeFolder) -> None:
    folder = make_folder()
    rewrite(folder, lambda tensors: tensors | {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(SettingsError, match=r"model\.norm\.weight .* torch\.int8"):
        load(folder)


def test_a_file_that_is_no_safetensors_file_is_named(make_folder: MakeFolder) -> None:
    folder = make_folder()
    (folder / "model.safetensors").write_bytes(b"not at all")
    with pytest.raises(SettingsError, match="is not a safetensors file"):
        load(folder)


@pytest.mark.parametrize(
    ("config", "error", "match"),
    [
        pytest.param(
            {"architectures": ["MambaForCausalLM"]},
            Unsupported,
            "MambaForCausalLM is not known.*LlamaForCausalLM.*MistralForCausalLM.*Qwen2.*Qwen3",
            id="architecture",
        ),
        pytest.param({"architectures": None}, Unsupported, "none named", id="no-architecture"),
        pytest.param({"hidden_act": "gelu"}, Unsupported, "hidden_act='gelu'", id="activation"),
        pytest.param(
            {"rope_scaling": {"type": "yarn", "factor": 4.0}}, Unsupported, "'yarn'.*llama3", id="rope-kind"
        ),
        pytest.param(
            {"num_attention_heads": 0}, SettingsError, "num_attention_heads .* is 0", id="zero-heads"
        ),
        pytest.param(
            {"rms_norm_eps": "tiny"}, SettingsError, "rms_norm_eps .* 'tiny'", id="word-for-a-number"
        ),
        pytest.param({"torch_dtype": "int8"}, Unsupported, "'int8'", id="dtype"),
        pytest.param(
            {"rope_scaling": {"rope_type": "linear"}}, SettingsError, r"rope_scaling\.factor", id="no-factor"
        ),
        pytest.param({"num_key_value_heads": 3}, SettingsError, "num_key_value_heads=3", id="uneven-heads"),
    ],
)
def test_a_config_that_cannot_be_run_says_why(
    make_folder: MakeFolder, config: dict[str, Any], error: type[RidgelineError], match: str
) -> None:
    with pytest.raises(error, match=match):
        load(make_folder(config=config))


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        pytest.param({"device": "cuda:0"}, SettingsError, "finds no CUDA device", id="no-cuda"),
        pytest.param({"device": "abacus"}, SettingsError, "device='abacus'", id="unknown-device"),
        pytest.param({"max_context_tokens": 4096}, SettingsError, "more than the model's 2048", id="context"),
        pytest.param({"kv_blocks": 100_000}, OutOfMemory, "limit of 1048576", id="kv-memory"),
        pytest.param({"deterministic": True}, SettingsError, "deterministic", id="deterministic"),
        pytest.param({"kv_blocks": 0}, SettingsError, "kv_blocks=0", id="no-blocks"),
        pytest.param({"dtype": "int4"}, SettingsError, "dtype='int4'", id="unknown-dtype"),
    ],
)
def test_a_setting_that_cannot_work_names_itself(
    make_folder: MakeFolder,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    error: type[RidgelineError],
    match: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(error, match=match):
        load(make_folder(), **fields)


def test_a_failed_start_leaves_no_thread_and_no_memory(
    make_folder: MakeFolder, make_executor: MakeExecutor
) -> None:
    import threading

    before = threading.active_count()
    with pytest.raises(Unsupported):
        make_executor(make_folder(config={"architectures": ["MambaForCausalLM"]}))
    assert threading.active_count() == before
