"""How much memory a model takes, from its config alone: for the ledger, before anything is loaded.
Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ridgeline_contracts.kv import GroupId, KVDtype

from ridgeline_engine.executors.architectures import DecoderShape, kv_groups, read_shape
from ridgeline_engine.executors.matrices import MatrixPlan, WeightFormat, head_matrix, layer_matrices

_FP32_BYTES = 4
_PIECE_WEIGHTS = 1 << 22
_PIECE_BYTES_PER_WEIGHT = 24
"""Copies in fp32 of the piece that is quantised at a time, with its errors and codes."""


@dataclass(frozen=True, slots=True)
class SizeEstimate:
    """Bytes on the device; of a CPU that is its memory."""

    weight_bytes: int
    """Matrices, embedding, norms and the table of rotations."""
    second_form_bytes: int
    """At most so much more on a CPU with bf16 instructions, where a matrix may be held in one form for few
    rows and another for many. 0 in fp32."""
    loading_bytes: int
    """On top of the weights while they load: the largest matrix once more, stacked but not yet packed."""
    activation_bytes: int
    """Peak of a step of `max_step_tokens` tokens in which `max_batch` rows want logits."""
    kv_block_bytes: Mapping[GroupId, int]
    """Of one block id, all layers of its group."""

    def total_bytes(self, *, kv_blocks: int) -> int:
        """The highest peak, with so many blocks in each group."""
        kv = sum(self.kv_block_bytes.values()) * kv_blocks
        return (
            self.weight_bytes + self.second_form_bytes + max(self.loading_bytes, self.activation_bytes) + kv
        )


DtypeSetting: TypeAlias = Literal["auto", "bf16", "fp32"]
WeightsSetting: TypeAlias = Literal["auto", "int8", "int4"]


def full_format(shape: DecoderShape, dtype: DtypeSetting) -> WeightFormat:
    """Of what is not quantised, KV among it. auto: as the checkpoint is, with float16 taken as bf16."""
    if dtype == "auto":
        return WeightFormat.FP32 if shape.checkpoint_dtype == "float32" else WeightFormat.BF16
    return WeightFormat(dtype)


def kv_dtype(shape: DecoderShape, dtype: DtypeSetting) -> KVDtype:
    return KVDtype(full_format(shape, dtype).value)


def weight_format(shape: DecoderShape, dtype: DtypeSetting, weights: WeightsSetting = "auto") -> WeightFormat:
    """Of the matrices. `weights` auto: as `dtype` says."""
    return full_format(shape, dtype) if weights == "auto" else WeightFormat(weights)


def estimate(
    config: Mapping[str, Any],
    *,
    dtype: DtypeSetting,
    weights: WeightsSetting = "auto",
    block_tokens: int,
    max_batch: int,
    max_step_tokens: int,
    max_context_tokens: int | None = None,
) -> SizeEstimate:
    """From a parsed config.json. Raises as `read_shape` does."""
    shape = read_shape(config)
    chosen = weight_format(shape, dtype, weights)
    matrices = [plan for layer in range(shape.layers) for plan in layer_matrices(shape, layer).values()]
    held = [plan.held_bytes(chosen) for plan in matrices]
    head = head_matrix(shape)
    held.append(head.held_bytes(chosen.of_head))
    groups = kv_groups(shape, block_tokens=block_tokens, dtype=kv_dtype(shape, dtype))
    rest = _unquantised_bytes(shape, full_format(shape, dtype), max_context_tokens or shape.context_tokens)
    largest = max([*matrices, head], key=lambda plan: plan.weights)
    return SizeEstimate(
        weight_bytes=sum(held) + rest,
        second_form_bytes=sum(held) if chosen is WeightFormat.BF16 else 0,
        loading_bytes=_loading_bytes(largest, full_format(shape, dtype), chosen),
        activation_bytes=_activation_bytes(shape, max_batch=max_batch, max_step_tokens=max_step_tokens),
        kv_block_bytes={group.group: group.block_bytes for group in groups},
    )


def _unquantised_bytes(shape: DecoderShape, full: WeightFormat, context_tokens: int) -> int:
    """Norms and rotations in fp32, and an embedding that is not the output matrix too."""
    table = 0 if shape.tied_embeddings else shape.vocab_tokens * shape.hidden
    norms = (
        shape.layers * (2 * shape.hidden + (2 * shape.head_dim if shape.query_key_norm else 0)) + shape.hidden
    )
    rotations = context_tokens * shape.head_dim
    return int(table * full.bytes_per_weight) + (norms + rotations) * _FP32_BYTES


def _loading_bytes(largest: MatrixPlan, full: WeightFormat, chosen: WeightFormat) -> int:
    """The matrix as it is stacked, and what a piece of it takes while it is quantised."""
    stacked = int(largest.weights * full.bytes_per_weight)
    if not chosen.is_quantised:
        return stacked
    return stacked + min(largest.weights, _PIECE_WEIGHTS) * _PIECE_BYTES_PER_WEIGHT


def _activation_bytes(shape: DecoderShape, *, max_batch: int, max_step_tokens: int) -> int:
    """Buffers stay for the next step: residual, norm, product, q k v, attention, gate and up, their product.

    Logits in fp32; the sampler's copies of them in fp32 and fp64.
    """
    per_token = 3 * shape.hidden + shape.qkv_width + shape.query_width + 3 * shape.feed_forward
    logits = max_batch * shape.vocab_tokens * (2 * _FP32_BYTES + 3 * 8)
    return per_token * max_step_tokens * _FP32_BYTES + logits
