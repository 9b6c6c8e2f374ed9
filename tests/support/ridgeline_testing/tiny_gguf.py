"""Writes the tiny model as llama.cpp would: a GGUF file that the product can convert back."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import quantize

from ridgeline_testing.tiny_llama import (
    CHATML_TEMPLATE,
    SPECIAL_TOKENS,
    tiny_tensor_shapes,
    tiny_values,
    tiny_vocabulary,
)

_CONTROL, _NORMAL = 3, 1


def tiny_config(
    model_type: str = "llama", *, tied_embeddings: bool = True, layers: int = 2
) -> dict[str, Any]:
    """Dimensions of the tiny model, in the names of config.json. Rows are multiples of 32, as Q8_0 needs."""
    return {
        "model_type": model_type,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied_embeddings,
    }


def tiny_tensors(config: dict[str, Any], *, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights under their Hugging Face names."""
    random = np.random.default_rng(seed)
    return {name: tiny_values(name, shape, random) for name, shape in tiny_tensor_shapes(config).items()}


def write_tiny_gguf(
    path: Path,
    config: dict[str, Any],
    tensors: dict[str, npt.NDArray[np.float32]],
    *,
    matrix_format: str = "F32",
    metadata: dict[str, str | int | bool] | None = None,
    left_out: str | None = None,
) -> Path:
    """Writes and returns `path`. `metadata` adds or overrides keys; `left_out` names a GGUF tensor to omit."""
    writer = gguf.GGUFWriter(path, config["model_type"])
    _add_shape(writer, config)
    _add_vocabulary(writer, config["vocab_size"])
    for key, value in (metadata or {}).items():
        adders = {str: writer.add_string, int: writer.add_uint32, bool: writer.add_bool}
        adders[type(value)](key, value)
    names = gguf.get_tensor_name_map(
        {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[
            config["model_type"]
        ],
        config["num_hidden_layers"],
    )
    for name, values in tensors.items():
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        if gguf_name == left_out:
            continue
        stored = _as_llama_cpp_orders(config, gguf_name, values)
        kind = gguf.GGMLQuantizationType[matrix_format if values.ndim == 2 else "F32"]
        writer.add_tensor(gguf_name, quantize(stored, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary_tokens: int) -> None:
    tokens, merges = tiny_vocabulary(vocabulary_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in SPECIAL_TOKENS else _NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(CHATML_TEMPLATE)


def _as_llama_cpp_orders(
    config: dict[str, Any], gguf_name: str, values: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """llama.cpp's own permutation of q and k for the llama family, in its own words: halves become neighbours."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    part = gguf_name.split(".")[-2]
    if config["model_type"] != "llama" or part not in heads:
        return values
    halves = values.reshape(heads[part], 2, values.shape[0] // heads[part] // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
