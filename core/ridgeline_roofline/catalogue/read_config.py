"""A Hugging Face config.json as a ModelSpec. One reader a family of architectures; unknown keys are ignored."""

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, Final, TypeAlias

from ridgeline_contracts.errors import SettingsError, Unsupported

from ridgeline_roofline.catalogue.formats import Dtype
from ridgeline_roofline.catalogue.mixers import Attention, LatentAttention, Mixer, Recurrent
from ridgeline_roofline.catalogue.model_spec import DenseMlp, LayerGroup, Mlp, ModelSpec, MoeMlp

Config: TypeAlias = Mapping[str, Any]
_Layer: TypeAlias = tuple[Mixer | None, Mlp | None]


def read_config(config: Config, *, model_id: str) -> ModelSpec:
    """Raises Unsupported for an unknown `model_type`, SettingsError naming a key that is missing or no number."""
    kind = config.get("model_type", "")
    reader = _READERS.get(kind)
    if reader is None:
        known = " ".join(sorted(_READERS))
        raise Unsupported(f"model_type={kind!r} of {model_id} is not known here: known are {known}")
    layers = reader(config)
    groups = tuple(
        LayerGroup(len(list(same)), mixer, mlp) for (mixer, mlp), same in groupby(_grouped(layers))
    )
    hidden = _number(config, "hidden_size")
    norms = sum((mixer is not None) + (mlp is not None) for mixer, mlp in layers)
    return ModelSpec(
        model_id=model_id,
        hidden=hidden,
        vocab_tokens=_number(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        groups=groups,
        norm_parameters=(norms + 1) * hidden,
        context_tokens=_number(config, "max_position_embeddings"),
        native_weights=_native(config),
    )


def _grouped(layers: list[_Layer]) -> list[_Layer]:
    """Equal layers side by side, kinds in the order of their first layer: order does not change a step's cost."""
    first: dict[_Layer, int] = {}
    for index, layer in enumerate(layers):
        first.setdefault(layer, index)
    return sorted(layers, key=lambda layer: first[layer])


def _dense(config: Config) -> list[_Layer]:
    mlp = DenseMlp(_number(config, "hidden_size"), _number(config, "intermediate_size"))
    return [(mixer, mlp) for mixer in _attention_layers(config)]


def _qwen3(config: Config) -> list[_Layer]:
    mlp = DenseMlp(_number(config, "hidden_size"), _number(config, "intermediate_size"))
    return [(mixer, mlp) for mixer in _attention_layers(config, normed_queries=True)]


def _mixtral(config: Config) -> list[_Layer]:
    mlp = MoeMlp(
        hidden=_number(config, "hidden_size"),
        experts=_number(config, "num_local_experts"),
        top_k=_number(config, "num_experts_per_tok"),
        expert_ffn=_number(config, "intermediate_size"),
    )
    return [(mixer, mlp) for mixer in _attention_layers(config)]


def _qwen3_moe(config: Config) -> list[_Layer]:
    mlp = MoeMlp(
        hidden=_number(config, "hidden_size"),
        experts=_number(config, "num_experts"),
        top_k=_number(config, "num_experts_per_tok"),
        expert_ffn=_number(config, "moe_intermediate_size"),
    )
    return [(mixer, mlp) for mixer in _attention_layers(config, normed_queries=True)]


def _gpt_oss(config: Config) -> list[_Layer]:
    hidden, experts = _number(config, "hidden_size"), _number(config, "num_local_experts")
    width = _number(config, "intermediate_size")
    mlp = MoeMlp(
        hidden=hidden,
        experts=experts,
        top_k=_number(config, "num_experts_per_tok"),
        expert_ffn=width,
        # Biases of gate and up, of down, and of the router.
        extra_parameters=experts * (2 * width + hidden) + experts,
    )
    return [(mixer, mlp) for mixer in _attention_layers(config, sinks=True)]


def _deepseek_v3(config: Config) -> list[_Layer]:
    hidden = _number(config, "hidden_size")
    latent, query_latent = _number(config, "kv_lora_rank"), config.get("q_lora_rank")
    mixer = LatentAttention(
        hidden=hidden,
        heads=_number(config, "num_attention_heads"),
        latent_dim=latent,
        rope_dim=_number(config, "qk_rope_head_dim"),
        nope_dim=_number(config, "qk_nope_head_dim"),
        value_dim=_number(config, "v_head_dim"),
        query_latent_dim=query_latent,
        extra_parameters=latent + (query_latent or 0),
    )
    dense = DenseMlp(hidden, _number(config, "intermediate_size"))
    experts, width = _number(config, "n_routed_experts"), _number(config, "moe_intermediate_size")
    moe = MoeMlp(
        hidden=hidden,
        experts=experts,
        top_k=_number(config, "num_experts_per_tok"),
        expert_ffn=width,
        shared_ffn=width * int(config.get("n_shared_experts") or 0),
        groups=int(config.get("n_group") or 1),
        topk_groups=int(config.get("topk_group") or 1),
        extra_parameters=experts,
    )
    first_dense = int(config.get("first_k_dense_replace") or 0)
    return [
        (mixer, dense if layer < first_dense else moe)
        for layer in range(_number(config, "num_hidden_layers"))
    ]


def _nemotron_h(config: Config) -> list[_Layer]:
    hidden = _number(config, "hidden_size")
    heads, head_dim = _number(config, "mamba_num_heads"), _number(config, "mamba_head_dim")
    state, groups = _number(config, "ssm_state_size"), _number(config, "n_groups")
    width = _number(config, "conv_kernel")
    channels = heads * head_dim + 2 * groups * state
    mamba = Recurrent(
        hidden=hidden,
        heads=heads,
        head_dim=head_dim,
        state_dim=state,
        groups=groups,
        conv_width=width,
        # Convolution with its bias; A, D and dt bias a head; the gated norm.
        extra_parameters=channels * (width + 1) + 3 * heads + heads * head_dim,
    )
    parts: dict[str, _Layer] = {
        "M": (mamba, None),
        "-": (None, DenseMlp(hidden, _number(config, "intermediate_size"), matrices=2)),
        "*": (_attention(config), None),
    }
    pattern = str(config.get("hybrid_override_pattern", ""))
    unknown = set(pattern) - set(parts)
    if unknown or not pattern:
        raise SettingsError(f"hybrid_override_pattern={pattern!r}: expected a word over {' '.join(parts)}")
    return [parts[letter] for letter in pattern]


def _attention_layers(
    config: Config, *, normed_queries: bool = False, sinks: bool = False
) -> list[Attention]:
    layers = _number(config, "num_hidden_layers")
    kinds = config.get("layer_types") or ["full_attention"] * layers
    if len(kinds) != layers:
        raise SettingsError(f"layer_types names {len(kinds)} layers, num_hidden_layers is {layers}")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    windowed = window if "layer_types" in config else None
    if "layer_types" not in config and config.get("model_type") == "mistral":
        kinds, windowed = ["sliding_attention" if window else "full_attention"] * layers, window
    full = _attention(config, normed_queries=normed_queries, sinks=sinks)
    sliding = _attention(config, normed_queries=normed_queries, sinks=sinks, window=windowed)
    return [sliding if kind == "sliding_attention" else full for kind in kinds]


def _attention(
    config: Config, *, normed_queries: bool = False, sinks: bool = False, window: int | None = None
) -> Attention:
    hidden, heads = _number(config, "hidden_size"), _number(config, "num_attention_heads")
    kv_heads = _number(config, "num_key_value_heads", default=heads)
    head_dim = _number(config, "head_dim", default=hidden // heads)
    extra = (2 * head_dim if normed_queries else 0) + (heads if sinks else 0)
    if config.get("attention_bias"):
        extra += head_dim * (heads + 2 * kv_heads) + hidden
    elif config.get("model_type") == "qwen2":
        extra += head_dim * (heads + 2 * kv_heads)
    return Attention(hidden, heads, kv_heads, head_dim, window, extra)


def _native(config: Config) -> Dtype:
    quantised = config.get("quantization_config") or {}
    named = {"fp8": Dtype.FP8, "mxfp4": Dtype.MXFP4}.get(quantised.get("quant_method", ""))
    if named is not None:
        return named
    return Dtype.FP32 if config.get("torch_dtype", config.get("dtype")) == "float32" else Dtype.BF16


def _number(config: Config, key: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SettingsError(f"{key} in the model's config is {value!r}: expected a positive whole number")
    return value


_READERS: Final[Mapping[str, Callable[[Config], list[_Layer]]]] = {
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _dense,
    "qwen3": _qwen3,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v3": _deepseek_v3,
    "nemotron_h": _nemotron_h,
}
