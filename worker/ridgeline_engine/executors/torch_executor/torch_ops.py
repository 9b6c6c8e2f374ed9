"""The operators in plain torch, for any device. Attention gathers the blocks and calls SDPA."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from ridgeline_contracts.errors import SettingsError
from torch import Tensor

from ridgeline_engine.executors.matrices import WeightFormat
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps, TorchTokens
from ridgeline_engine.executors.torch_executor.ops import GroupBatch, PackedMatrix, RowLookup

_GATHERED_TOKENS = 65_536
"""Most context tokens that one SDPA call gathers: bounds the copy of K and V that it works on."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Sequences with equally many query tokens, attended to in one call. S sequences, Q queries, K keys."""

    rows: Tensor
    """int64 [S * Q]: their tokens in the batch."""
    queries: int
    blocks: Tensor
    """int64 [S, blocks]."""
    visible: Tensor
    """bool [S, 1, Q, K]."""
    written: Tensor
    """bool [S, 1, K, 1]: keys that belong to the sequence and that some query sees."""


class _Matrix:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self._bias)

    def weight_rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._weight)


class TorchOps:
    """Activations and KV in `dtype`."""

    row_invariant = False
    tokens: TokenOps = TorchTokens()

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def row_lookup(self, table: Tensor) -> RowLookup:
        return _Matrix(table.to(self._dtype), None).weight_rows

    def tied_row_lookup(self, matrix: PackedMatrix, table: Tensor) -> RowLookup:
        return matrix.weight_rows if isinstance(matrix, _Matrix) else self.row_lookup(table)

    def pack_linear(self, weight: Tensor, *, bias: Tensor | None = None, held: WeightFormat) -> PackedMatrix:
        if held.is_quantised:
            raise SettingsError(
                f"weights={held} run on the CPU's kernels, but {weight.device} runs plain torch operators: "
                "give weights=auto, or device=cpu",
                param="weights",
            )
        return _Matrix(weight.to(self._dtype), None if bias is None else bias.to(self._dtype))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            residual += x
            x = residual
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (normed * weight.float()).to(x.dtype)

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
        heads = qkv.view(qkv.shape[0], query_heads + 2 * kv_heads, head_dim)
        rotated = heads[:, : query_heads + kv_heads]
        cos, sin = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
        first, second = rotated.float().chunk(2, dim=-1)
        rotated.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))
        blocks = torch.div(batch.slot_mapping, batch.block_tokens, rounding_mode="floor")
        offsets = batch.slot_mapping % batch.block_tokens
        # Two index tensors around slices put the token axis first: [T, kv_heads, head_dim].
        kv_layer[blocks, :, 0, offsets] = heads[:, query_heads : query_heads + kv_heads].to(kv_layer.dtype)
        kv_layer[blocks, :, 1, offsets] = heads[:, query_heads + kv_heads :].to(kv_layer.dtype)

    def plan_attention(self, batch: GroupBatch) -> tuple[_Piece, ...]:
        lengths = np.diff(batch.host_query_start)
        single = np.flatnonzero(lengths == 1)
        widest = max(1, int(batch.host_context_lens.max(initial=1)))
        at_once = max(1, _GATHERED_TOKENS // widest)
        grouped = [single[start : start + at_once] for start in range(0, len(single), at_once)]
        grouped += [np.array([sequence]) for sequence in np.flatnonzero(lengths > 1)]
        return tuple(self._piece(batch, sequences) for sequences in grouped)

    def _piece(self, batch: GroupBatch, sequences: np.ndarray) -> _Piece:
        device = batch.block_tables.device
        starts = batch.host_query_start[sequences].astype(np.int64)
        contexts = batch.host_context_lens[sequences].astype(np.int64)
        queries = int(batch.host_query_start[sequences[0] + 1] - starts[0])
        width = -(-int(contexts.max()) // batch.block_tokens)
        within = np.arange(queries)
        rows = torch.from_numpy((starts[:, None] + within).reshape(-1)).to(device)
        # Positions of the queries against positions of the keys.
        query_at = torch.from_numpy(contexts[:, None] - queries + within).to(device)[:, None, :, None]
        key_at = torch.arange(width * batch.block_tokens, device=device)
        visible = key_at <= query_at
        if batch.window_tokens is not None:
            visible &= key_at > query_at - batch.window_tokens
        blocks = batch.block_tables[torch.from_numpy(sequences.astype(np.int64)).to(device), :width].long()
        return _Piece(rows, queries, blocks, visible, visible.any(dim=2).unsqueeze(-1))

    def paged_attention(
        self, q: Tensor, kv_layer: Tensor, plan: tuple[_Piece, ...], *, scale: float
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for piece in plan:
            out[piece.rows] = _attend(q[piece.rows], kv_layer, piece, scale=scale)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


def _attend(q: Tensor, kv_layer: Tensor, piece: _Piece, *, scale: float) -> Tensor:
    sequences, blocks = piece.blocks.shape
    _, kv_heads, parts, block_tokens, head_dim = kv_layer.shape
    gathered = kv_layer[piece.blocks].permute(3, 0, 2, 1, 4, 5)  # part, sequence, head, block, token, dim
    keys, values = gathered.reshape(parts, sequences, kv_heads, blocks * block_tokens, head_dim).to(q.dtype)
    # A block's unused tail may hold an earlier owner's numbers, and 0 * nan is nan: clear, not only mask.
    keys = keys.masked_fill(~piece.written, 0.0)
    values = values.masked_fill(~piece.written, 0.0)
    queries = q.view(sequences, piece.queries, q.shape[1], head_dim).transpose(1, 2)
    attended = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=piece.visible, scale=scale, enable_gqa=q.shape[1] != kv_heads
    )
    return attended.transpose(1, 2).reshape(q.shape)
