"""How a GGUF file's names and shapes become those of a Hugging Face model: one entry an architecture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ridgeline_contracts.errors import SettingsError, Unsupported

_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_PLAIN_PARTS = (
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What sets one family of dense decoder models apart from the next."""

    model_type: str
    causal_class: str
    rope_pairs_interleaved: bool
    """llama.cpp orders q and k rows of this family so that rope turns neighbours, Hugging Face halves."""
    extra_parts: tuple[str, ...] = ()
    extra_config: tuple[tuple[str, Any], ...] = ()


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        model_type="llama",
        causal_class="LlamaForCausalLM",
        rope_pairs_interleaved=True,
        extra_config=(("attention_bias", False), ("mlp_bias", False)),
    ),
    "qwen2": Architecture(
        model_type="qwen2",
        causal_class="Qwen2ForCausalLM",
        rope_pairs_interleaved=False,
        extra_parts=("attn_q.bias", "attn_k.bias", "attn_v.bias"),
        extra_config=(("use_sliding_window", False),),
    ),
    "qwen3": Architecture(
        model_type="qwen3",
        causal_class="Qwen3ForCausalLM",
        rope_pairs_interleaved=False,
        extra_parts=("attn_q_norm.weight", "attn_k_norm.weight"),
        extra_config=(("attention_bias", False), ("use_sliding_window", False)),
    ),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's dimensions as its GGUF metadata and tensor directory state them."""

    architecture: Architecture
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary_tokens: int
    context_tokens: int
    rope_theta: float
    rms_norm_eps: float
    tied_embeddings: bool

    def interleaved_heads(self, gguf_name: str) -> int | None:
        """Heads to un-permute in this tensor, None where rows already lie as Hugging Face has them."""
        if not self.architecture.rope_pairs_interleaved:
            return None
        if ".attn_q." in gguf_name:
            return self.heads
        return self.kv_heads if ".attn_k." in gguf_name else None


def read_shape(metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Shape:
    """Reads the dimensions and checks that exactly the tensors they ask for are there, in the right shapes.

    `shapes` maps GGUF tensor names to shapes, outermost dimension first. Raises Unsupported for a model that
    cannot be expressed, SettingsError for a file that contradicts itself.
    """
    name = str(metadata.get("general.architecture"))
    if name not in ARCHITECTURES:
        raise Unsupported(
            f"GGUF architecture {name!r} cannot be converted: take one of {', '.join(ARCHITECTURES)}, "
            "or the model's Hugging Face folder"
        )
    reader = _Reader(metadata, prefix=name)
    reader.refuse_what_has_no_counterpart(shapes)
    heads, hidden = reader.count("attention.head_count"), reader.count("embedding_length")
    shape = Shape(
        architecture=ARCHITECTURES[name],
        layers=reader.count("block_count"),
        hidden=hidden,
        intermediate=reader.count("feed_forward_length"),
        heads=heads,
        kv_heads=reader.count("attention.head_count_kv", heads),
        head_dim=reader.count("attention.key_length", reader.count("rope.dimension_count", hidden // heads)),
        vocabulary_tokens=shapes.get("token_embd.weight", (0,))[0],
        context_tokens=reader.count("context_length"),
        rope_theta=reader.real("rope.freq_base", 10_000.0),
        rms_norm_eps=reader.real("attention.layer_norm_rms_epsilon", None),
        tied_embeddings="output.weight" not in shapes,
    )
    _check_tensors(shape, shapes)
    return shape


def hugging_face_config(shape: Shape, token_ids: Mapping[str, int]) -> dict[str, Any]:
    """The content of config.json. `token_ids` holds bos_token_id, eos_token_id and such, where known."""
    return {
        "architectures": [shape.architecture.causal_class],
        "model_type": shape.architecture.model_type,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary_tokens,
        "max_position_embeddings": shape.context_tokens,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied_embeddings,
        "torch_dtype": "bfloat16",
        **dict(shape.architecture.extra_config),
        **token_ids,
    }


def hugging_face_name(gguf_name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`. The name must be a known one."""
    if gguf_name in _OUTER:
        return _OUTER[gguf_name]
    _, layer, part, kind = gguf_name.split(".")
    return f"model.layers.{layer}.{_LAYER[part]}.{kind}"


@dataclass(frozen=True, slots=True)
class _Reader:
    metadata: Mapping[str, Any]
    prefix: str

    def count(self, key: str, default: int | None = None) -> int:
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, list):
            raise Unsupported(
                f"{self.prefix}.{key} differs between layers ({value}): take the Hugging Face folder"
            )
        if not isinstance(value, int) or value <= 0:
            raise SettingsError(
                f"GGUF key {self.prefix}.{key} is {value!r}, expected a positive whole number"
            )
        return value

    def real(self, key: str, default: float | None) -> float:
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if not isinstance(value, float) or value <= 0:
            raise SettingsError(f"GGUF key {self.prefix}.{key} is {value!r}, expected a positive number")
        # Stored as float32: its shortest decimal (1e-05, not 9.999999747378752e-06) is what the author wrote.
        return float(str(np.float32(value)))

    def refuse_what_has_no_counterpart(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        scaling = self.metadata.get(f"{self.prefix}.rope.scaling.type", "none")
        if "rope_freqs.weight" in shapes or scaling != "none":
            raise Unsupported(
                "the GGUF file scales its rope frequencies, which cannot be turned back into a config.json: "
                "take the model's Hugging Face folder"
            )
        if self.metadata.get(f"{self.prefix}.expert_count", 0):
            raise Unsupported("the GGUF file is a mixture of experts: take the model's Hugging Face folder")


def _check_tensors(shape: Shape, shapes: Mapping[str, tuple[int, ...]]) -> None:
    expected = _expected_shapes(shape)
    missing, strange = sorted(expected.keys() - shapes.keys()), sorted(shapes.keys() - expected.keys())
    if missing:
        raise SettingsError(
            f"the GGUF file lacks {len(missing)} tensors, the first is {missing[0]}: get a whole one"
        )
    if strange:
        raise Unsupported(
            f"the GGUF file has a tensor without counterpart: {strange[0]}; take the original folder"
        )
    for name, wanted in expected.items():
        if shapes[name] != wanted:
            raise SettingsError(f"GGUF tensor {name} has shape {shapes[name]}, the metadata ask for {wanted}")


def _expected_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    outputs = {"attn_q": query, "attn_k": key, "attn_v": key, "ffn_gate": shape.intermediate}
    outputs |= {"ffn_up": shape.intermediate, "attn_q_norm": shape.head_dim, "attn_k_norm": shape.head_dim}
    inputs = {"attn_output": query, "ffn_down": shape.intermediate}
    embedding = (shape.vocabulary_tokens, shape.hidden)
    expected = {"token_embd.weight": embedding, "output_norm.weight": (shape.hidden,)}
    if not shape.tied_embeddings:
        expected["output.weight"] = embedding
    for layer in range(shape.layers):
        for part in (*_PLAIN_PARTS, *shape.architecture.extra_parts):
            stem = part.split(".")[0]
            width = outputs.get(stem, shape.hidden)
            is_matrix = not (stem.endswith("norm") or part.endswith("bias"))
            expected[f"blk.{layer}.{part}"] = (
                (width, inputs.get(stem, shape.hidden)) if is_matrix else (width,)
            )
    return expected
