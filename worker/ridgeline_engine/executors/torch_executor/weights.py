"""A decoder's weights: which tensors of the checkpoint make which matrix, and their loading, layer by
layer."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline_engine.executors.architectures import DecoderShape
from ridgeline_engine.executors.matrices import MatrixPlan, WeightFormat, head_matrix, layer_matrices
from ridgeline_engine.executors.torch_executor.checkpoint import Checkpoint
from ridgeline_engine.executors.torch_executor.linear import Linear
from ridgeline_engine.executors.torch_executor.ops import Ops, RowLookup

_DTYPES = {WeightFormat.BF16: torch.bfloat16, WeightFormat.FP32: torch.float32}


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Norm weights are fp32 vectors."""

    input_norm: Tensor
    qkv: Linear
    """Outputs: all query heads, all key heads, all value heads."""
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    feed_forward_norm: Tensor
    gate_up: Linear
    """Outputs: the gate's, then the up projection's."""
    down: Linear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embed: RowLookup
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear


class WeightLoader:
    """Maps a checkpoint onto matrices. At most one matrix is held twice at a time.

    `weight_format` is that of the matrices, `full_format` that of what is never quantised.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        shape: DecoderShape,
        *,
        ops: Ops,
        weight_format: WeightFormat,
        full_format: WeightFormat,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._shape = shape
        self._ops = ops
        self._format = weight_format
        self._dtype = _DTYPES[full_format]
        self._device = device

    def load(self, *, on_layer: Callable[[int], None] | None = None) -> DecoderWeights:
        """Reads all weights; calls `on_layer` with the count of layers that are ready.

        Raises SettingsError for a tensor that is missing or of another shape.
        """
        shape = self._shape
        head, embed = self._head_and_embedding()
        layers = []
        for layer in range(shape.layers):
            layers.append(self._layer(layer))
            if on_layer is not None:
                on_layer(layer + 1)
        return DecoderWeights(
            embed=embed,
            layers=tuple(layers),
            final_norm=self._vector("model.norm.weight", shape.hidden),
            head=head,
        )

    def _head_and_embedding(self) -> tuple[Linear, RowLookup]:
        shape, plan = self._shape, head_matrix(self._shape)
        weight, _ = self._weight_and_bias(plan)
        held = self._format.of_head
        matrix = self._ops.pack_linear(weight, held=held)
        head = Linear(matrix, partition=plan.partition, weight_format=held)
        if shape.tied_embeddings:
            return head, self._ops.tied_row_lookup(matrix, weight)
        table = self._stacked([("model.embed_tokens.weight", (shape.vocab_tokens, shape.hidden))])
        return head, self._ops.row_lookup(table)

    def _layer(self, layer: int) -> LayerWeights:
        shape, prefix = self._shape, f"model.layers.{layer}"
        plans = layer_matrices(shape, layer)
        normed = shape.query_key_norm
        return LayerWeights(
            input_norm=self._vector(f"{prefix}.input_layernorm.weight", shape.hidden),
            qkv=self._linear(plans["qkv"]),
            query_norm=self._vector(f"{prefix}.self_attn.q_norm.weight", shape.head_dim) if normed else None,
            key_norm=self._vector(f"{prefix}.self_attn.k_norm.weight", shape.head_dim) if normed else None,
            output=self._linear(plans["output"]),
            feed_forward_norm=self._vector(f"{prefix}.post_attention_layernorm.weight", shape.hidden),
            gate_up=self._linear(plans["gate_up"]),
            down=self._linear(plans["down"]),
        )

    def _linear(self, plan: MatrixPlan) -> Linear:
        weight, bias = self._weight_and_bias(plan)
        matrix = self._ops.pack_linear(weight, bias=bias, held=self._format)
        return Linear(matrix, partition=plan.partition, weight_format=self._format)

    def _weight_and_bias(self, plan: MatrixPlan) -> tuple[Tensor, Tensor | None]:
        parts = list(zip(plan.sources, plan.outputs, strict=True))
        weight = self._stacked([(f"{name}.weight", (rows, plan.inputs)) for name, rows in parts])
        if not plan.bias:
            return weight, None
        return weight, self._stacked([(f"{name}.bias", (rows,)) for name, rows in parts])

    def _stacked(self, named: list[tuple[str, tuple[int, ...]]]) -> Tensor:
        dtype = self._dtype
        parts = [self._checkpoint.tensor(name, shape) for name, shape in named]
        if len(parts) == 1:
            # A view of the file's map will not do: the map goes with the checkpoint.
            return parts[0].to(self._device, dtype, copy=True)
        return torch.cat([part.to(self._device, dtype) for part in parts])

    def _vector(self, name: str, width: int) -> Tensor:
        return self._checkpoint.tensor(name, (width,)).to(self._device, torch.float32, copy=True)
