"""The CPU kernels behind the executor's operators. Activations are fp32, whatever the weights are."""

from pathlib import Path
from typing import TypeAlias

import torch.nn.functional as F
from ridgeline_kernels.cpu import CpuOps, load_cpu_ops
from torch import Tensor

from ridgeline_engine.executors.torch_executor.ops import GroupBatch, RowLookup

_Plan: TypeAlias = tuple[Tensor, Tensor, Tensor, int | None]


class NativeOps:
    """See `Ops`; the work is `CpuOps`'s, which falls back to torch where no compiler is at hand."""

    def __init__(self, cache_dir: Path, *, threads: int) -> None:
        self._cpu: CpuOps = load_cpu_ops(cache_dir, threads)
        self.rms_norm = self._cpu.rms_norm
        self.silu_mul = self._cpu.silu_mul
        self.pack_linear = self._cpu.pack_linear

    @property
    def row_invariant(self) -> bool:
        return self._cpu.native

    @property
    def description(self) -> str:
        return self._cpu.description

    def row_lookup(self, table: Tensor) -> RowLookup:
        return lambda ids: F.embedding(ids, table).float()

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
            q, kv_layer, tables, query_start, context_lens, scale=scale, window=window
        )
