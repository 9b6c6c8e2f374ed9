"""The forward pass as one native call a step, where operators and matrices allow it."""

from collections.abc import Callable, Sequence

from ridgeline_kernels.cpu import PackedLinear
from ridgeline_kernels.cpu.program import (
    DecoderProgram,
    RecordedLayer,
    RecordedModel,
    StepGroup,
    StepTensors,
)
from torch import Tensor

from ridgeline_engine.executors.architectures import DecoderShape
from ridgeline_engine.executors.torch_executor.linear import Linear
from ridgeline_engine.executors.torch_executor.native_ops import NativeMatrix, NativeOps
from ridgeline_engine.executors.torch_executor.ops import DecoderBatch, GroupBatch, Ops
from ridgeline_engine.executors.torch_executor.weights import DecoderWeights, LayerWeights


class RecordedDecoder:
    """All layers and the head; see `Decoder.forward`, whose numbers it gives bit for bit."""

    def __init__(self, program: DecoderProgram) -> None:
        self._program = program

    def forward(
        self, residual: Tensor, batch: DecoderBatch, *, on_layer: Callable[[int], None] | None = None
    ) -> Tensor:
        """Overwrites residual fp32 [T, hidden]."""
        program = self._program
        tensors = StepTensors(batch.positions, batch.logit_rows, [_step_group(each) for each in batch.groups])
        step = program.begin(residual.contiguous(), tensors)
        if on_layer is None:
            program.run(step, 0, program.layers)
            return step.logits
        for layer in range(program.layers):
            program.run(step, layer, layer + 1)
            on_layer(layer)
        return step.logits


def record_decoder(
    ops: Ops,
    shape: DecoderShape,
    weights: DecoderWeights,
    *,
    kv_layers: Sequence[Tensor],
    group_of_layer: Sequence[int],
    cos_sin: Tensor,
) -> RecordedDecoder | None:
    """None where some matrix is not the native library's, or has an adapter."""
    if not isinstance(ops, NativeOps):
        return None
    head = _packed(weights.head)
    layers = [
        _layer(layer, kv_layers[index], group_of_layer[index]) for index, layer in enumerate(weights.layers)
    ]
    recorded = [layer for layer in layers if layer is not None]
    if head is None or len(recorded) < len(layers):
        return None
    program = ops.record(
        RecordedModel(
            layers=recorded,
            final_norm=weights.final_norm,
            head=head,
            cos_sin=cos_sin,
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            epsilon=shape.norm_epsilon,
            scale=shape.head_dim**-0.5,
            invariant=ops.row_invariant,
        )
    )
    return None if program is None else RecordedDecoder(program)


def _layer(layer: LayerWeights, kv_layer: Tensor, kv_group: int) -> RecordedLayer | None:
    matrices = [_packed(each) for each in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    packed = [matrix for matrix in matrices if matrix is not None]
    if len(packed) < len(matrices):
        return None
    qkv, output, gate_up, down = packed
    return RecordedLayer(
        input_norm=layer.input_norm,
        query_norm=layer.query_norm,
        key_norm=layer.key_norm,
        feed_forward_norm=layer.feed_forward_norm,
        qkv=qkv,
        output=output,
        gate_up=gate_up,
        down=down,
        kv_layer=kv_layer,
        kv_group=kv_group,
    )


def _packed(linear: Linear) -> PackedLinear | None:
    matrix = linear.matrix
    return matrix.packed if isinstance(matrix, NativeMatrix) and linear.adapter is None else None


def _step_group(batch: GroupBatch) -> StepGroup:
    return StepGroup(
        batch.slot_mapping, batch.block_tables, batch.query_start, batch.context_lens, batch.window_tokens
    )
