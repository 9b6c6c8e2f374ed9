"""A tiny random Llama (or Qwen) as a Hugging Face folder: fast, deterministic, able to encode any text."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ridgeline_cli.model.safetensors_file import ResumableWriter, to_bfloat16_bits
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as InOrder

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = "the and that have with this from they would there about which when your said user assistant system"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def build_tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    intermediate: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocabulary_tokens: int = 512,
    context_tokens: int = 2048,
    rope_theta: float = 10_000.0,
    eos_token_ids: Sequence[int] = (2, 0),
    tied_embeddings: bool = False,
    model_type: str = "llama",
) -> Path:
    """Writes configs, model.safetensors (bf16) and tokenizer files into `folder`; returns it.

    Equal arguments give equal bytes. Weights are scaled so that logits differ clearly: greedy choices do not
    hang on rounding. The vocabulary is 3 special tokens, 256 bytes, then merges; between 259 and 900 tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[model_type]],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary_tokens,
        "max_position_embeddings": context_tokens,
        "rope_theta": rope_theta,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": tied_embeddings,
        "attention_bias": model_type == "qwen2",
        "bos_token_id": 1,
        "eos_token_id": eos_token_ids[0],
        "torch_dtype": "bfloat16",
    }
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": list(eos_token_ids), "pad_token_id": 2},
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "model_max_length": context_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHATML_TEMPLATE,
        },
    )
    (folder / "tokenizer.json").write_text(build_tiny_tokenizer(vocabulary_tokens).to_str(), encoding="utf-8")
    _write_weights(folder / "model.safetensors", tiny_tensor_shapes(config), seed=seed)
    return folder


def tiny_tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face tensor names and shapes of a model of this config."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")
        }
        for part, rows in (("q", query), ("k", key), ("v", key)):
            shapes[f"{at}.self_attn.{part}_proj.weight"] = (rows, hidden)
            if config["model_type"] == "qwen2":
                shapes[f"{at}.self_attn.{part}_proj.bias"] = (rows,)
            if config["model_type"] == "qwen3" and part != "v":
                shapes[f"{at}.self_attn.{part}_norm.weight"] = (config["head_dim"],)
        shapes[f"{at}.self_attn.o_proj.weight"] = (hidden, query)
        shapes |= {f"{at}.mlp.{part}_proj.weight": (wide, hidden) for part in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, wide)
    return shapes


def tiny_values(name: str, shape: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Random values of a sensible size for a tensor of this name."""
    if "norm" in name:
        return (1.0 + 0.1 * random.standard_normal(shape)).astype(np.float32)
    if name.endswith("bias"):
        return (0.1 * random.standard_normal(shape)).astype(np.float32)
    gain = {"model.embed_tokens.weight": shape[-1] ** 0.5, "lm_head.weight": 4.0}.get(name, 1.0)
    scale = gain * shape[-1] ** -0.5
    return (scale * random.standard_normal(shape)).astype(np.float32)


def build_tiny_tokenizer(vocabulary_tokens: int) -> Tokenizer:
    """A byte-level BPE tokenizer with exactly this many tokens, split by digit as SmolLM2's is."""
    tokens, merges = tiny_vocabulary(vocabulary_tokens)
    tokenizer = Tokenizer(BPE(vocab={token: id_ for id_, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = InOrder([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def tiny_vocabulary(vocabulary_tokens: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens by id and the merges among them. Raises ValueError for a size that cannot be filled."""
    tokens = [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for left, right in _possible_merges():
        if len(tokens) >= vocabulary_tokens:
            break
        if left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    if len(tokens) != vocabulary_tokens:
        raise ValueError(f"vocabulary_tokens={vocabulary_tokens} cannot be filled: ask for 259 to 900")
    return tokens, merges


def _possible_merges() -> list[tuple[str, str]]:
    words = [spelling for word in _WORDS.split() for spelling in ("Ġ" + word, word)]
    growing = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    return growing + [(left, right) for left in "Ġ" + _LETTERS for right in _LETTERS]


def _write_weights(path: Path, shapes: dict[str, tuple[int, ...]], *, seed: int) -> None:
    journal_path = path.with_suffix(".journal")
    path.unlink(missing_ok=True)
    writer = ResumableWriter(path, shapes, journal_path=journal_path, origin=f"tiny {seed}")
    random = np.random.default_rng(seed)
    for name in writer.remaining():
        writer.append(name, to_bfloat16_bits(tiny_values(name, shapes[name], random)))
    writer.finish()
    journal_path.unlink()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
