"""What each operator computes, in plain torch: the oracle of the tests, and the way without a compiler.

All activations are fp32. The paged cache of a layer is [blocks, kv_heads, 2 (key, value), block_tokens, head_dim].
"""

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline_kernels.cpu.quantised import Quantised

LARGEST_CODE = 32767.0
LEAST_ACTIVATION = 1e-30
"""A group of activations that are all below counts as zeros."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [rows, in] @ weight [out, in]^T + bias [out], in fp32 whatever the weight's dtype."""
    return functional.linear(x, weight.float(), bias)


def quantised_linear(x: Tensor, held: Quantised, bias: Tensor | None, *, rounds: bool) -> Tensor:
    """x [rows, in] fp32 times the weight that codes stand for, plus bias [out]: fp32, from sums in fp64.

    `rounds`: with activations rounded to 16 bits of the largest in their group, as the C kernel does.
    """
    if rounds:
        x = _rounded_to_16_bits(x, held.codes.shape[2])
    wide = None if bias is None else bias.double()
    return functional.linear(x.double(), held.weight().double(), wide).float()


def _rounded_to_16_bits(x: Tensor, group: int) -> Tensor:
    features = x.shape[1]
    grouped = functional.pad(x, (0, -features % group)).view(len(x), -1, group)
    largest = grouped.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where(largest > LEAST_ACTIVATION, LARGEST_CODE / largest, 0.0)
    # In double, as a fused multiply-add sees the product.
    rounded = (grouped.double() * inverse).round() * (largest / LARGEST_CODE)
    return rounded.flatten(1)[:, :features]


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None) -> Tensor:
    """residual (if any) += x in place; returns it (or x) over its root mean square, times weight [hidden]."""
    if residual is not None:
        x = residual.add_(x)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps) * weight


def silu_mul(gate_up: Tensor) -> Tensor:
    """[rows, 2 * ffn] -> [rows, ffn]: silu of the first half times the second."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def rope_store(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    *,
    query_heads: int,
    kv_heads: int,
) -> None:
    """Rotates q and k in place (halves paired) and writes k and v to the cache; a negative slot is not stored."""
    block_tokens, head_dim = kv_layer.shape[3:]
    heads = qkv.view(-1, query_heads + 2 * kv_heads, head_dim)
    rotated = heads[:, : query_heads + kv_heads]
    cos, sin = cos_sin[positions.long()].unsqueeze(1).chunk(2, dim=-1)
    first, second = rotated.clone().chunk(2, dim=-1)
    rotated.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
    kept = slot_mapping >= 0
    block, offset = slot_mapping[kept] // block_tokens, slot_mapping[kept] % block_tokens
    stored = heads[kept, query_heads:].to(kv_layer.dtype)
    kv_layer[block, :, 0, offset] = stored[:, :kv_heads]
    kv_layer[block, :, 1, offset] = stored[:, kv_heads:]


def paged_attention(
    q: Tensor,
    kv_layer: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    *,
    scale: float,
    window: int | None,
) -> Tensor:
    """Causal attention of each sequence's last queries over its cached keys; [rows, query_heads, head_dim].

    Query i of a sequence with n queries and c tokens of context sees the keys j with j <= c - n + i, and with a
    window only those with j > c - n + i - window.
    """
    out = torch.zeros_like(q, memory_format=torch.contiguous_format)
    block_tokens = kv_layer.shape[3]
    starts = query_start.tolist()
    for index, context in enumerate(context_lens.tolist()):
        begin, end = starts[index], starts[index + 1]
        if begin == end:
            continue
        blocks = block_tables[index, : -(-context // block_tokens)].long()
        tokens = kv_layer[blocks].permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, :context].float()
        out[begin:end] = _attend(q[begin:end], tokens[0], tokens[1], scale=scale, window=window)
    return out


def _attend(q: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None) -> Tensor:
    """q [queries, query_heads, d], keys and values [kv_heads, context, d]."""
    queries, context = q.shape[0], keys.shape[1]
    group = q.shape[1] // keys.shape[0]
    keys, values = keys.repeat_interleave(group, dim=0), values.repeat_interleave(group, dim=0)
    scores = torch.einsum("qhd,hkd->hqk", q, keys) * scale
    last = torch.arange(context - queries, context).unsqueeze(1)
    key = torch.arange(context).unsqueeze(0)
    seen = key <= last
    if window is not None:
        seen &= key > last - window
    weights = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,hkd->qhd", weights, values)
