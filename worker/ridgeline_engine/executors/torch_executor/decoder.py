"""The forward pass: one flattened batch of decode rows and prompt chunks through all layers."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ridgeline_engine.executors.architectures import DecoderShape
from ridgeline_engine.executors.torch_executor.ops import DecoderBatch, GroupBatch, Ops
from ridgeline_engine.executors.torch_executor.recorded import RecordedDecoder
from ridgeline_engine.executors.torch_executor.weights import DecoderWeights, LayerWeights


class Decoder:
    """Runs batches. `kv_layers` holds per layer [blocks, kv_heads, 2, block_tokens, head_dim]."""

    def __init__(
        self,
        shape: DecoderShape,
        weights: DecoderWeights,
        *,
        ops: Ops,
        kv_layers: Sequence[Tensor],
        group_of_layer: Sequence[int],
        cos_sin: Tensor,
        recorded: RecordedDecoder | None = None,
    ) -> None:
        """`recorded` computes the same in one call a step; operators one by one are the way without it."""
        self._shape = shape
        self._weights = weights
        self._ops = ops
        self._kv_layers = kv_layers
        self._group_of_layer = group_of_layer
        self._cos_sin = cos_sin
        self._recorded = recorded
        self._scale = shape.head_dim**-0.5

    @property
    def weights(self) -> DecoderWeights:
        return self._weights

    @torch.inference_mode()
    def forward(self, batch: DecoderBatch, *, on_layer: Callable[[int], None] | None = None) -> Tensor:
        """Logits of the wanted tokens, fp32 [L, vocab]; the next call may overwrite them.

        `on_layer` is called with a layer's index some time after its keys and values are handed to the device.
        """
        ops, weights = self._ops, self._weights
        if self._recorded is not None:
            return self._recorded.forward(weights.embed(batch.ids), batch, on_layer=on_layer)
        plans = [ops.plan_attention(group) for group in batch.groups]
        residual = weights.embed(batch.ids)
        change: Tensor | None = None
        last = len(weights.layers) - 1
        for index, layer in enumerate(weights.layers):
            group = self._group_of_layer[index]
            normed = self._norm(residual, change, layer.input_norm)
            qkv = layer.qkv(normed)
            if layer.query_norm is not None and layer.key_norm is not None:
                self._norm_heads(qkv, layer.query_norm, layer.key_norm)
            self._store(qkv, index, batch.positions, batch.groups[group])
            if on_layer is not None:
                on_layer(index)
            if index == last and not len(batch.logit_rows):
                return residual.new_zeros((0, self._shape.vocab_tokens), dtype=torch.float32)
            attended = self._attend(qkv, index, plans[group])
            if index == last and len(batch.logit_rows) < len(batch.ids):
                # Past the last KV only the wanted rows matter.
                attended, residual = attended[batch.logit_rows], residual[batch.logit_rows]
            change = self._feed_forward(layer, layer.output(attended), residual)
        return weights.head(self._norm(residual, change, weights.final_norm)).float()

    def _norm(self, residual: Tensor, change: Tensor | None, weight: Tensor) -> Tensor:
        if change is None:
            return self._ops.rms_norm(residual, weight, self._shape.norm_epsilon)
        return self._ops.rms_norm(change, weight, self._shape.norm_epsilon, residual)

    def _norm_heads(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor) -> None:
        """Norms each head of q and k in place."""
        shape, epsilon = self._shape, self._shape.norm_epsilon
        queries = qkv[:, : shape.query_width]
        keys = qkv[:, shape.query_width : shape.query_width + shape.kv_width]
        for part, weight in ((queries, query_norm), (keys, key_norm)):
            heads = part.reshape(-1, shape.head_dim)
            part.copy_(self._ops.rms_norm(heads, weight, epsilon).view(part.shape))

    def _store(self, qkv: Tensor, layer: int, positions: Tensor, group: GroupBatch) -> None:
        self._ops.rope_store(
            qkv,
            positions,
            self._cos_sin,
            self._kv_layers[layer],
            group,
            query_heads=self._shape.query_heads,
            kv_heads=self._shape.kv_heads,
            head_dim=self._shape.head_dim,
        )

    def _attend(self, qkv: Tensor, layer: int, plan: Any) -> Tensor:
        shape = self._shape
        heads = qkv.view(qkv.shape[0], shape.query_heads + 2 * shape.kv_heads, shape.head_dim)
        queries = heads[:, : shape.query_heads]
        attended = self._ops.paged_attention(queries, self._kv_layers[layer], plan, scale=self._scale)
        return attended.view(qkv.shape[0], shape.query_width)

    def _feed_forward(self, layer: LayerWeights, change: Tensor, residual: Tensor) -> Tensor:
        normed = self._norm(residual, change, layer.feed_forward_norm)
        return layer.down(self._ops.silu_mul(layer.gate_up(normed)))
