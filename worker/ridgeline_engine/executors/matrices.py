"""The matrices of a decoder: where each comes from, its size, and how it may be split. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ridgeline_engine.executors.architectures import DecoderShape


class Partition(StrEnum):
    """Along which side a tensor-parallel group would cut the matrix."""

    OUTPUT = "output"
    """Each rank holds some output features (q, k, v, gate, up, the head)."""
    INPUT = "input"
    """Each rank holds some input features; results are summed over ranks (o, down)."""


class WeightFormat(StrEnum):
    BF16 = "bf16"
    FP32 = "fp32"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def is_quantised(self) -> bool:
        return self in _GROUPS

    @property
    def group(self) -> int:
        """Input features that share a scale; of int8 and int4."""
        return _GROUPS[self]

    @property
    def bytes_per_weight(self) -> float:
        """In a matrix; with the scales and offsets of int8 and int4."""
        if self.is_quantised:
            return _BITS[self] / 8 + _GROUP_BYTES[self] / self.group
        return _BITS[self] / 8

    @property
    def of_head(self) -> "WeightFormat":
        """Of the output matrix: it decides between near tokens, and with 4 bits would cost more text than time."""
        return WeightFormat.INT8 if self is WeightFormat.INT4 else self


_BITS: Mapping[WeightFormat, int] = {
    WeightFormat.BF16: 16,
    WeightFormat.FP32: 32,
    WeightFormat.INT8: 8,
    WeightFormat.INT4: 4,
}
_GROUPS: Mapping[WeightFormat, int] = {WeightFormat.INT8: 64, WeightFormat.INT4: 32}
_GROUP_BYTES: Mapping[WeightFormat, int] = {WeightFormat.INT8: 2, WeightFormat.INT4: 4}
"""A scale in bf16, with int4 an offset too."""
_PANEL_OUTPUTS = 16
"""Matrices of int8 and int4 are held in whole panels of outputs and whole groups of inputs."""


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """A matrix [sum of outputs, inputs] whose parts stand one under the other."""

    sources: tuple[str, ...]
    """Names of the parts in the checkpoint, without their .weight and .bias."""
    outputs: tuple[int, ...]
    inputs: int
    partition: Partition
    bias: bool = False

    @property
    def weights(self) -> int:
        return sum(self.outputs) * (self.inputs + (1 if self.bias else 0))

    def held_bytes(self, held: WeightFormat) -> int:
        """In memory, in this format."""
        if not held.is_quantised:
            return int(self.weights * held.bytes_per_weight)
        outputs = _whole(sum(self.outputs), _PANEL_OUTPUTS)
        matrix = int(outputs * _whole(self.inputs, held.group) * held.bytes_per_weight)
        return matrix + (outputs * 4 if self.bias else 0)


def layer_matrices(shape: DecoderShape, layer: int) -> Mapping[str, MatrixPlan]:
    """The four matrices of a layer: qkv, output, gate_up, down."""
    attention, feed_forward = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    return {
        "qkv": MatrixPlan(
            sources=(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            outputs=(shape.query_width, shape.kv_width, shape.kv_width),
            inputs=shape.hidden,
            partition=Partition.OUTPUT,
            bias=shape.qkv_bias,
        ),
        "output": MatrixPlan(
            sources=(f"{attention}.o_proj",),
            outputs=(shape.hidden,),
            inputs=shape.query_width,
            partition=Partition.INPUT,
            bias=shape.output_bias,
        ),
        "gate_up": MatrixPlan(
            sources=(f"{feed_forward}.gate_proj", f"{feed_forward}.up_proj"),
            outputs=(shape.feed_forward, shape.feed_forward),
            inputs=shape.hidden,
            partition=Partition.OUTPUT,
            bias=shape.feed_forward_bias,
        ),
        "down": MatrixPlan(
            sources=(f"{feed_forward}.down_proj",),
            outputs=(shape.hidden,),
            inputs=shape.feed_forward,
            partition=Partition.INPUT,
            bias=shape.feed_forward_bias,
        ),
    }


def head_matrix(shape: DecoderShape) -> MatrixPlan:
    """The output projection: the embedding itself where the two are tied."""
    source = "model.embed_tokens" if shape.tied_embeddings else "lm_head"
    return MatrixPlan(
        sources=(source,), outputs=(shape.vocab_tokens,), inputs=shape.hidden, partition=Partition.OUTPUT
    )


def _whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit
