"""From a model's config.json to the numbers that a decoder needs. Torch-free: the memory ledger reads it too.

Adding an architecture that differs from Llama by its config only is one entry in `_ARCHITECTURES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.errors import SettingsError, Unsupported
from ridgeline_contracts.kv import GroupId, KVDtype, KVGroup, KVKind

from ridgeline_engine.executors.config_fields import ConfigFields
from ridgeline_engine.executors.rope import Rope, read_rope


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder of the Llama family. Sizes count elements, not bytes."""

    architecture: str
    layers: int
    hidden: int
    feed_forward: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_tokens: int
    context_tokens: int
    norm_epsilon: float
    rope: Rope
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    feed_forward_bias: bool
    query_key_norm: bool
    """RMS norm over each head of q and k before the rotation (Qwen3)."""
    windows: tuple[int | None, ...]
    """By layer: how many of the latest keys, the query's own included, attention sees; None is all."""
    checkpoint_dtype: str
    """What config.json says of the weights: bfloat16, float16 or float32."""

    @property
    def query_width(self) -> int:
        return self.query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return self.query_width + 2 * self.kv_width


@dataclass(frozen=True, slots=True)
class _Traits:
    """How an architecture departs from Llama."""

    qkv_bias: Callable[[ConfigFields], bool]
    output_bias: Callable[[ConfigFields], bool]
    windows: Callable[[ConfigFields, int], tuple[int | None, ...]]
    query_key_norm: bool = False


def _stated_bias(config: ConfigFields) -> bool:
    return config.flag("attention_bias", default=False)


def _always(_config: ConfigFields) -> bool:
    return True


def _never(_config: ConfigFields) -> bool:
    return False


def _no_window(_config: ConfigFields, layers: int) -> tuple[int | None, ...]:
    return (None,) * layers


def _one_window(config: ConfigFields, layers: int) -> tuple[int | None, ...]:
    return (config.optional_count("sliding_window"),) * layers


def _qwen_windows(config: ConfigFields, layers: int) -> tuple[int | None, ...]:
    window = config.optional_count("sliding_window")
    if window is None or not config.flag("use_sliding_window", default=False):
        return (None,) * layers
    kinds = config.text_list("layer_types")
    if kinds is not None:
        return tuple(window if kind == "sliding_attention" else None for kind in kinds[:layers])
    first = config.count("max_window_layers", default=layers)
    return tuple(window if layer >= first else None for layer in range(layers))


_ARCHITECTURES: Mapping[str, _Traits] = {
    "LlamaForCausalLM": _Traits(qkv_bias=_stated_bias, output_bias=_stated_bias, windows=_no_window),
    "MistralForCausalLM": _Traits(qkv_bias=_never, output_bias=_never, windows=_one_window),
    "Qwen2ForCausalLM": _Traits(qkv_bias=_always, output_bias=_never, windows=_qwen_windows),
    "Qwen3ForCausalLM": _Traits(
        qkv_bias=_stated_bias, output_bias=_stated_bias, windows=_qwen_windows, query_key_norm=True
    ),
}
_DTYPES = ("bfloat16", "float16", "float32")


def read_shape(config: Mapping[str, Any]) -> DecoderShape:
    """The shape that a parsed config.json describes.

    Raises Unsupported for an architecture, activation or rope scaling that is not known (it names those that
    are), SettingsError for a field that is missing or has a strange value.
    """
    fields = ConfigFields(config)
    architecture = _architecture_name(config)
    traits = _ARCHITECTURES[architecture]
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise Unsupported(f"hidden_act={activation!r} of {architecture} is not known: silu is")
    layers, heads, hidden = (
        fields.count("num_hidden_layers"),
        fields.count("num_attention_heads"),
        fields.count("hidden_size"),
    )
    kv_heads = fields.count("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise SettingsError(
            f"num_key_value_heads={kv_heads} in config.json does not divide num_attention_heads={heads}: "
            "mend the file or fetch the model again"
        )
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if dtype not in _DTYPES:
        raise Unsupported(f"weights of dtype {dtype!r} are not known: {', '.join(_DTYPES)} are")
    return DecoderShape(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        feed_forward=fields.count("intermediate_size"),
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.count("head_dim", default=hidden // heads),
        vocab_tokens=fields.count("vocab_size"),
        context_tokens=fields.count("max_position_embeddings"),
        norm_epsilon=fields.positive("rms_norm_eps", default=1e-6),
        rope=read_rope(fields),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=traits.qkv_bias(fields),
        output_bias=traits.output_bias(fields),
        feed_forward_bias=fields.flag("mlp_bias", default=False),
        query_key_norm=traits.query_key_norm,
        windows=traits.windows(fields, layers),
        checkpoint_dtype=dtype,
    )


def kv_groups(shape: DecoderShape, *, block_tokens: int, dtype: KVDtype) -> tuple[KVGroup, ...]:
    """One group of the layers with full attention, and one of those with each window, in this order."""
    groups: list[KVGroup] = []
    for window in sorted(set(shape.windows), key=lambda window: window or 0):
        layers = tuple(layer for layer, own in enumerate(shape.windows) if own == window)
        groups.append(
            KVGroup(
                group=GroupId(len(groups)),
                layers=layers,
                kind=KVKind.FULL if window is None else KVKind.WINDOW,
                block_tokens=block_tokens,
                heads=shape.kv_heads,
                head_dim=shape.head_dim,
                dtype=dtype,
                window_tokens=window,
            )
        )
    return tuple(groups)


def _architecture_name(config: Mapping[str, Any]) -> str:
    named = config.get("architectures") or []
    for name in named:
        if name in _ARCHITECTURES:
            return str(name)
    raise Unsupported(
        f"architecture {', '.join(map(str, named)) or '(none named in config.json)'} is not known; "
        f"the torch executor runs {', '.join(_ARCHITECTURES)}"
    )
