"""How much memory a model takes, from its config alone: for the ledger, before anything is loaded.
Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline_contracts.kv import GroupId, KVDtype

from ridgeline_engine.executors.architectures import DecoderShape, kv_groups, read_shape
from ridgeline_engine.executors.matrices import MatrixPlan, WeightFormat, head_matrix, layer_matrices

_FP32_BYTES = 4


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


def weight_format(shape: DecoderShape, setting: Literal["auto", "bf16", "fp32"]) -> WeightFormat:
    """auto: as the checkpoint is, with float16 taken as bf16."""
    if setting == "auto":
        return WeightFormat.FP32 if shape.checkpoint_dtype == "float32" else WeightFormat.BF16
    return WeightFormat(setting)


def estimate(
    config: Mapping[str, Any],
    *,
    dtype: Literal["auto", "bf16", "fp32"],
    block_tokens: int,
    max_batch: int,
    max_step_tokens: int,
    max_context_tokens: int | None = None,
) -> SizeEstimate:
    """From a parsed config.json. Raises as `read_shape` does."""
    shape = read_shape(config)
    chosen = weight_format(shape, dtype)
    matrices = [plan for layer in range(shape.layers) for plan in layer_matrices(shape, layer).values()]
    matrices.append(head_matrix(shape))
    groups = kv_groups(shape, block_tokens=block_tokens, dtype=KVDtype(chosen.value))
    return SizeEstimate(
        weight_bytes=_weight_bytes(shape, matrices, chosen, max_context_tokens or shape.context_tokens),
        second_form_bytes=sum(plan.weights for plan in matrices) * 2 if chosen is WeightFormat.BF16 else 0,
        loading_bytes=max(plan.weights for plan in matrices) * chosen.bytes_per_weight,
        activation_bytes=_activation_bytes(shape, max_batch=max_batch, max_step_tokens=max_step_tokens),
        kv_block_bytes={group.group: group.block_bytes for group in groups},
    )


def _weight_bytes(
    shape: DecoderShape, matrices: list[MatrixPlan], chosen: WeightFormat, context_tokens: int
) -> int:
    weights = sum(plan.weights for plan in matrices)
    if not shape.tied_embeddings:
        weights += shape.vocab_tokens * shape.hidden
    norms = (
        shape.layers * (2 * shape.hidden + (2 * shape.head_dim if shape.query_key_norm else 0)) + shape.hidden
    )
    rotations = context_tokens * shape.head_dim
    return weights * chosen.bytes_per_weight + (norms + rotations) * _FP32_BYTES


def _activation_bytes(shape: DecoderShape, *, max_batch: int, max_step_tokens: int) -> int:
    """Buffers stay for the next step: residual, norm, product, q k v, attention, gate and up, their product.

    Logits in fp32; the sampler's copies of them in fp32 and fp64.
    """
    per_token = 3 * shape.hidden + shape.qkv_width + shape.query_width + 3 * shape.feed_forward
    logits = max_batch * shape.vocab_tokens * (2 * _FP32_BYTES + 3 * 8)
    return per_token * max_step_tokens * _FP32_BYTES + logits
