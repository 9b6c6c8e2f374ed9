"""A GGUF file becomes the folder it was made from: names, order of rows, shapes, values, tokenizer."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from ridgeline_cli.model.convert import convert, plan_conversion
from ridgeline_cli.model.gguf_file import GgufFile
from ridgeline_cli.model.progress import PlainProgress
from ridgeline_contracts.errors import SettingsError, Unsupported
from ridgeline_contracts.model_folder import ModelFolder, load_model_folder
from ridgeline_testing.tiny_gguf import tiny_config, tiny_tensors, write_tiny_gguf
from ridgeline_testing.tiny_llama import CHATML_TEMPLATE, build_tiny_tokenizer
from safetensors import safe_open
from tokenizers import Tokenizer

QUIET = PlainProgress(lambda line: None)


def converted(gguf_path: Path, folder: Path) -> ModelFolder:
    with GgufFile(gguf_path) as gguf:
        convert(
            gguf,
            plan_conversion(gguf),
            gguf_sha256="0" * 64,
            folder=folder,
            journal_path=folder.with_suffix(".journal"),
            progress=QUIET,
        )
    return load_model_folder(folder)


def read_tensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    with safe_open(path, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)


@pytest.mark.parametrize("tied_embeddings", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_every_tensor_comes_back_under_its_own_name_rounded_to_bfloat16(
    tmp_path: Path, model_type: str, tied_embeddings: bool
) -> None:
    config = tiny_config(model_type, tied_embeddings=tied_embeddings)
    tensors = tiny_tensors(config)
    folder = converted(write_tiny_gguf(tmp_path / "tiny.gguf", config, tensors), tmp_path / "out")
    found = read_tensors(folder.weight_paths[0])
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        expected = values.astype(ml_dtypes.bfloat16)
        assert np.array_equal(found[name].view(np.uint16), expected.view(np.uint16)), name


@pytest.mark.parametrize("matrix_format", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_quantised_matrices_are_dequantised_before_they_are_rounded(
    tmp_path: Path, matrix_format: str
) -> None:
    config = tiny_config("qwen3")
    tensors = tiny_tensors(config)
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tensors, matrix_format=matrix_format)
    found = read_tensors(converted(path, tmp_path / "out").weight_paths[0])
    kind = GGMLQuantizationType[matrix_format]
    values = tensors["model.layers.1.mlp.up_proj.weight"]
    expected = dequantize(quantize(values, kind), kind).astype(ml_dtypes.bfloat16)
    assert np.array_equal(
        found["model.layers.1.mlp.up_proj.weight"].view(np.uint16), expected.view(np.uint16)
    )


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_config_json_states_the_dimensions_of_the_metadata(tmp_path: Path, model_type: str) -> None:
    config = tiny_config(model_type)
    folder = converted(
        write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config)), tmp_path / "out"
    )
    assert {key: folder.config[key] for key in config} == config
    assert (folder.context_tokens, folder.vocabulary_tokens) == (512, 320)


def test_the_folder_holds_the_end_tokens_the_template_and_the_tokenizer(tmp_path: Path) -> None:
    config = tiny_config()
    folder = converted(
        write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config)), tmp_path / "out"
    )
    # 2 is what the file names, 0 is <|endoftext|>, a control token that ends a text whatever the file names.
    assert folder.eos_token_ids == (2, 0)
    assert (folder.bos_token_id, folder.add_bos) == (1, False)
    assert folder.chat_template == CHATML_TEMPLATE
    ours, original = Tokenizer.from_file(str(folder.tokenizer_path)), build_tiny_tokenizer(320)
    for text in ("the user said 1234", "  héllo\n\n3 \t", "<|im_start|>user\nthat<|im_end|>", "日本 ½Ⅷ", ""):
        assert ours.encode(text).ids == original.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == original.decode(original.encode(text).ids)


def test_a_stated_bos_is_put_before_plain_text(tmp_path: Path) -> None:
    config = tiny_config()
    metadata: dict[str, str | int | bool] = {"tokenizer.ggml.add_bos_token": True}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config), metadata=metadata)
    folder = converted(path, tmp_path / "out")
    assert folder.add_bos
    assert Tokenizer.from_file(str(folder.tokenizer_path)).encode("the").ids[0] == 1


def test_two_conversions_give_equal_hashes(tmp_path: Path) -> None:
    config = tiny_config()
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config), matrix_format="Q4_1")
    first, second = converted(path, tmp_path / "first"), converted(path, tmp_path / "second")
    assert first.files == second.files
    assert first.weights_revision == second.weights_revision


@pytest.mark.parametrize(
    ("metadata", "error", "says"),
    [
        pytest.param(
            {"general.architecture": "mamba"}, Unsupported, "llama, qwen2, qwen3", id="architecture"
        ),
        pytest.param({"llama.expert_count": 8}, Unsupported, "mixture of experts", id="experts"),
        pytest.param({"llama.rope.scaling.type": "yarn"}, Unsupported, "scales its rope", id="rope-scaling"),
        pytest.param({"tokenizer.ggml.model": "llama"}, Unsupported, "byte-level BPE", id="sentencepiece"),
        pytest.param({"tokenizer.ggml.pre": "new"}, Unsupported, "pre-tokenizer 'new'", id="pre-tokenizer"),
        pytest.param({"tokenizer.ggml.eos_token_id": 999}, SettingsError, "outside its 320 tokens", id="eos"),
        pytest.param({"llama.attention.head_count": 0}, SettingsError, "head_count is 0", id="no-heads"),
        pytest.param({"llama.embedding_length": 32}, SettingsError, "the metadata ask for", id="other-shape"),
        pytest.param({"llama.block_count": 3}, SettingsError, "lacks 9 tensors", id="missing-layer"),
        pytest.param({"llama.block_count": 1}, Unsupported, "without counterpart: blk.1.", id="extra-layer"),
    ],
)
def test_a_file_that_cannot_be_converted_says_why(
    tmp_path: Path, metadata: dict[str, str | int | bool], error: type[Exception], says: str
) -> None:
    config = tiny_config()
    path = tmp_path / "tiny.gguf"
    overriding = write_tiny_gguf(path, config, tiny_tensors(config), metadata=metadata)
    with pytest.raises(error, match=says):
        converted(overriding, tmp_path / "out")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    config = tiny_config()
    path = write_tiny_gguf(tmp_path / "t.gguf", config, tiny_tensors(config), left_out="blk.1.ffn_up.weight")
    with pytest.raises(SettingsError, match=r"blk\.1\.ffn_up\.weight"):
        converted(path, tmp_path / "out")


def test_generation_config_json_lists_all_end_tokens(tmp_path: Path) -> None:
    config = tiny_config()
    metadata: dict[str, str | int | bool] = {"tokenizer.ggml.eot_token_id": 7}
    path = write_tiny_gguf(tmp_path / "tiny.gguf", config, tiny_tensors(config), metadata=metadata)
    folder = converted(path, tmp_path / "out")
    written = json.loads((folder.path / "generation_config.json").read_text())
    assert written["eos_token_id"] == [2, 7, 0]
