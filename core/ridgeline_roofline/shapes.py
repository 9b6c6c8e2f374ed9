"""What a worker's memory ledger needs to know of a model. (Everything else reads `catalogue.ModelSpec`.)"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import KVGroup


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A dense decoder (Llama, Mistral, Qwen): all layers equal, a gated MLP of three matrices."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_tokens: int
    tied_embeddings: bool

    @property
    def layer_parameters(self) -> int:
        """Of one layer's matrices; norms and biases are too small to matter."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def head_parameters(self) -> int:
        """Of the matrix that gives logits, whether or not the embedding shares it."""
        return self.hidden * self.vocab_tokens

    @property
    def parameters(self) -> int:
        """All that is held in memory."""
        tables = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_parameters + tables * self.head_parameters


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Reads a Hugging Face config.json. Raises SettingsError naming a key that is missing or no positive
    number."""
    heads = _positive(config, "num_attention_heads")
    hidden = _positive(config, "hidden_size")
    return ModelShape(
        layers=_positive(config, "num_hidden_layers"),
        hidden=hidden,
        ffn=_positive(config, "intermediate_size"),
        heads=heads,
        kv_heads=_positive(config, "num_key_value_heads", default=heads),
        head_dim=_positive(config, "head_dim", default=hidden // heads),
        vocab_tokens=_positive(config, "vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def kv_token_bytes(groups: Sequence[KVGroup]) -> float:
    """Bytes that one token of one sequence keeps, in all groups."""
    return sum(group.token_bytes for group in groups)


def _positive(config: Mapping[str, Any], key: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or value <= 0:
        raise SettingsError(f"{key} in the model's config is {value!r}: expected a positive whole number")
    return value
