"""RMS norm with the residual's addition, one pass over memory: each row is read, summed, normed and written once."""

import torch
import triton
import triton.language as tl
from ridgeline_contracts.errors import InvariantError, Unsupported
from torch import Tensor

WIDEST_ROW = 65536
"""A row lies in registers as a whole; beyond this it would spill."""


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    residual,
    out,
    hidden,
    x_stride,
    residual_stride,
    out_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    value = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        at = residual + row * residual_stride + column
        value += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(residual.dtype.element_ty)
        tl.store(at, rounded, mask=inside)
        # What is normed is what was stored, so that a later layer that reads the residual sees the same sum.
        value = rounded.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / hidden + eps)
    weighted = value * scale * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, weighted.to(out.dtype.element_ty), mask=inside)


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """What `rms_norm` computes, in torch; the residual is changed in place too."""
    if residual is not None:
        x = residual.copy_(residual.float() + x.float())
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """residual (if any) += x in place; returns it (or x) over its root mean square, times weight.

    x and residual [rows, hidden] of one dtype (fp32, fp16 or bf16), rows may be strided; weight [hidden]. Sums are
    fp32. Returns a new contiguous [rows, hidden] of x's dtype. Raises Unsupported for rows wider than WIDEST_ROW,
    InvariantError for tensors that do not fit together.
    """
    rows, hidden = x.shape
    if hidden > WIDEST_ROW:
        raise Unsupported(f"rms_norm holds a row in registers: {hidden} columns are more than {WIDEST_ROW}")
    _check("x", x, x)
    _check("weight", weight.unsqueeze(0), x[:1])
    if residual is not None:
        _check("residual", residual, x)
        if residual.dtype != x.dtype:
            raise InvariantError(f"residual is {residual.dtype}, x is {x.dtype}: one dtype is needed")
    out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    if rows == 0:
        return out
    block = triton.next_power_of_2(hidden)
    _rms_norm_kernel[(rows,)](
        x,
        weight,
        residual,
        out,
        hidden,
        x.stride(0),
        0 if residual is None else residual.stride(0),
        out.stride(0),
        eps,
        HAS_RESIDUAL=residual is not None,
        BLOCK=block,
        num_warps=min(16, max(1, block // 512)),
    )
    return out


def _check(name: str, tensor: Tensor, like: Tensor) -> None:
    if (
        tensor.shape[1:] != like.shape[1:]
        or tensor.shape[0] not in (like.shape[0], 1)
        or tensor.stride(1) != 1
    ):
        raise InvariantError(
            f"{name} must be {tuple(like.shape)} contiguous within a row, "
            f"not {tuple(tensor.shape)} with strides {tensor.stride()}"
        )
