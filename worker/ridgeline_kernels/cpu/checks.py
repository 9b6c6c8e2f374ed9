"""What an operator asks of its tensors. All raise InvariantError: a tensor that does not fit is a caller's bug."""

import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor


def check_rows(name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
    """fp32 of this shape, contiguous within a row."""
    if tensor.shape != shape or tensor.dtype != torch.float32 or tensor.stride(1) != 1:
        raise InvariantError(
            f"{name} must be fp32 {shape} contiguous within a row, "
            f"not {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        )


def check_dense(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
        raise InvariantError(
            f"{name} must be {dtype} {shape} and contiguous, not {tensor.dtype} {tuple(tensor.shape)}"
        )


def check_cache(kv_layer: Tensor, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Returns (blocks, tokens in a block)."""
    shape = kv_layer.shape
    fits = len(shape) == 5 and shape[1] == kv_heads and shape[2] == 2 and shape[4] == head_dim
    if not fits or kv_layer.dtype not in (torch.bfloat16, torch.float32) or not kv_layer.is_contiguous():
        raise InvariantError(
            f"kv_layer must be contiguous bf16 or fp32 [blocks, {kv_heads}, 2, block_tokens, {head_dim}], "
            f"not {kv_layer.dtype} {tuple(shape)}"
        )
    return shape[0], shape[3]


def check_range(name: str, values: Tensor, limit: int, *, low: int | None = 0) -> None:
    bad = values >= limit if low is None else (values >= limit) | (values < low)
    if bad.any():
        raise InvariantError(f"{name} {int(values[bad][0])} is outside the table of {limit}")


def output(out: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    if out is None:
        return torch.empty(shape, dtype=torch.float32)
    check_dense("out", out, shape, torch.float32)
    return out


def check_batch(
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    rows: int,
    blocks: int,
    block_tokens: int,
) -> None:
    """Query ranges cover the rows in order, contexts hold their queries and fit their tables, blocks exist."""
    queries = query_start.diff()
    room = block_tables.shape[1] * block_tokens
    whole = query_start[0] == 0 and query_start[-1] == rows and bool((queries >= 0).all())
    if not whole or bool(((context_lens < queries) | (context_lens > room)).any()):
        raise InvariantError(
            f"attention lengths do not fit {rows} rows and tables of {room} tokens: "
            f"query_start {query_start.tolist()}, context_lens {context_lens.tolist()}"
        )
    used = torch.arange(block_tables.shape[1]) * block_tokens < context_lens.unsqueeze(1)
    bad = used & ((block_tables < 0) | (block_tables >= blocks))
    if bad.any():
        raise InvariantError(f"block {int(block_tables[bad][0])} is outside the cache of {blocks} blocks")
