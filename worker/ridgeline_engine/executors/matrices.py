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

    @property
    def bytes_per_weight(self) -> int:
        return {"bf16": 2, "fp32": 4}[self.value]


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
