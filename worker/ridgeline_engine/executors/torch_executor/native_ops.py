"""The CPU kernels behind the executor's operators. Activations are fp32, whatever the weights are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeAlias

import torch.nn.functional as F
from ridgeline_contracts.clock import Clock
from ridgeline_kernels.cpu import PackedLinear, QuantFormat, RoundingError, load_cpu_ops
from ridgeline_kernels.cpu.program import DecoderProgram, RecordedModel
from torch import Tensor

from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps, TorchTokens
from ridgeline_engine.executors.torch_executor.ops import GroupBatch, PackedMatrix, RowLookup
from ridgeline_engine.executors.torch_executor.row_buffers import RowBuffers

_QUANT_FORMATS: Mapping[WeightFormat, QuantFormat] = {
    WeightFormat.INT8: QuantFormat(bits=8, group=WeightFormat.INT8.group),
    WeightFormat.INT4: QuantFormat(bits=4, group=WeightFormat.INT4.group),
}
_Plan: TypeAlias = tuple[Tensor, Tensor, Tensor, int | None]


class NativeOps:
    """See `Ops`; the work is `CpuOps`'s, which falls back to torch where no compiler is at hand.

    With `deterministic`, matrices are held in the form whose rows do not depend on each other, and attention takes
    one way for decode and prompts, though others may be faster here.
    """

    def __init__(
        self, cache_dir: Path, *, threads: int, clock: Clock, weights: WeightFormat, deterministic: bool
    ) -> None:
        self._cpu: Final = load_cpu_ops(cache_dir, threads, clock=clock)
        self._native_matrices = deterministic or weights is WeightFormat.FP32
        self._deterministic = deterministic
        self._rounding: dict[WeightFormat, RoundingError] = {}
        self._normed = RowBuffers()
        self._products = RowBuffers()
        self._attended = RowBuffers()
        self._activated = RowBuffers()

    @property
    def row_invariant(self) -> bool:
        return self._cpu.native and self._deterministic

    @property
    def tokens(self) -> TokenOps:
        return self._cpu.tokens or TorchTokens()

    @property
    def description(self) -> str:
        return self._cpu.description

    @property
    def rounding(self) -> Mapping[WeightFormat, RoundingError]:
        """What holding matrices as int8 and int4 has cost so far."""
        return self._rounding

    def pack_linear(self, weight: Tensor, *, bias: Tensor | None = None, held: WeightFormat) -> PackedMatrix:
        if held.is_quantised:
            quant = _QUANT_FORMATS[held]
            packed, error = self._cpu.pack_quantised(weight, quant, bias=bias)
            self._rounding[held] = self._rounding.get(held, RoundingError(0.0, 0.0)) + error
            return NativeMatrix(packed, self._products)
        native = self._native_matrices and self._cpu.native
        packed = self._cpu.pack_linear(weight, bias=bias, form="native" if native else "auto")
        return NativeMatrix(packed, self._products)

    def record(self, model: RecordedModel) -> DecoderProgram | None:
        """The decoder as one native call, of the matrices that `pack_linear` gave; None where it cannot be."""
        return self._cpu.record(model)

    def row_lookup(self, table: Tensor) -> RowLookup:
        return lambda ids: F.embedding(ids, table).float()

    def tied_row_lookup(self, matrix: PackedMatrix, table: Tensor) -> RowLookup:
        packed = matrix.packed if isinstance(matrix, NativeMatrix) else None
        if packed is None or set(packed.form_names) == {"onednn"}:
            return self.row_lookup(table)  # oneDNN's layout is its own: it does not give rows back
        return packed.weight_rows

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        return self._cpu.rms_norm(x, weight, eps, residual, out=self._normed.take(*x.shape))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, both = gate_up.shape
        return self._cpu.silu_mul(gate_up, out=self._activated.take(rows, both // 2))

    def rope_store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        kv_layer: Tensor,
        batch: GroupBatch,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        self._cpu.rope_store(
            qkv,
            positions,
            cos_sin,
            kv_layer,
            batch.slot_mapping,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )

    def plan_attention(self, batch: GroupBatch) -> _Plan:
        return batch.block_tables, batch.query_start, batch.context_lens, batch.window_tokens

    def paged_attention(self, q: Tensor, kv_layer: Tensor, plan: _Plan, *, scale: float) -> Tensor:
        tables, query_start, context_lens, window = plan
        return self._cpu.paged_attention(
            q,
            kv_layer,
            tables,
            query_start,
            context_lens,
            scale=scale,
            window=window,
            invariant=self._deterministic,
            out=self._attended.take(*q.shape),
        )


class NativeMatrix:
    """A packed matrix whose products go to a buffer that all matrices share."""

    __slots__ = ("_products", "_width", "packed")

    def __init__(self, packed: PackedLinear, products: RowBuffers) -> None:
        self.packed = packed
        self._width = packed.out_features
        self._products = products

    def __call__(self, x: Tensor) -> Tensor:
        return self.packed(x, self._products.take(x.shape[0], self._width))
