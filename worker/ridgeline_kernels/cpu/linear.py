"""A weight matrix packed for the CPU, as a callable."""

from typing import Literal, Protocol

import torch
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from ridgeline_kernels.cpu import packing
from ridgeline_kernels.cpu.native import NativeLibrary
from torch import Tensor
from torch.nn import functional

FormName = Literal["auto", "native", "onednn", "torch"]


class LinearForm(Protocol):
    """One way to hold a weight and multiply by it."""

    name: str
    weight_bytes: int

    def apply(self, x: Tensor, out: Tensor) -> None:
        """out [rows, out] = x [rows, in] @ weight^T + bias; both fp32, rows > 0, contiguous within a row."""
        ...

    def weight_rows(self, ids: Tensor) -> Tensor | None:
        """Rows of the weight as fp32 [n, in], or None where the form cannot give them back."""
        ...


class NativeForm:
    """The C kernel on panels; keeps one copy of the weight in its own dtype. Exact per row for any batch."""

    name = "native"

    def __init__(self, library: NativeLibrary, weight: Tensor, bias: Tensor | None, *, threads: int) -> None:
        self._linear = library.linear
        self._out, self._features = weight.shape
        self._packed = packing.pack(weight)
        self._bias = None if bias is None else packing.pad_bias(bias, self._out)
        self._is_bf16 = int(weight.dtype == torch.bfloat16)
        self._depth = self._features + (self._features % 2 if self._is_bf16 else 0)
        self._threads = threads
        self._weight_at = self._packed.data_ptr()
        self._bias_at = None if self._bias is None else self._bias.data_ptr()
        self.weight_bytes = self._packed.nbytes

    def apply(self, x: Tensor, out: Tensor) -> None:
        fault = self._linear(
            x.data_ptr(),
            x.stride(0),
            self._weight_at,
            self._bias_at,
            out.data_ptr(),
            out.stride(0),
            x.shape[0],
            self._features,
            self._depth,
            self._out,
            self._is_bf16,
            self._threads,
        )
        if fault:
            raise OutOfMemory(f"no memory for the scratch copy of {tuple(x.shape)} activations; lower the chunk size")

    def weight_rows(self, ids: Tensor) -> Tensor | None:
        return packing.unpack_rows(self._packed, ids, self._features).float()


class TorchForm:
    """torch's own product on the weight as it is; keeps one copy. Activations are cast to the weight's dtype."""

    name = "torch"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.to(weight.dtype)
        self.weight_bytes = self._weight.nbytes

    def apply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(functional.linear(x.to(self._weight.dtype), self._weight, self._bias))

    def weight_rows(self, ids: Tensor) -> Tensor | None:
        return self._weight[ids].float()


class PackedLinear:
    """y = x @ weight^T + bias on fp32 activations, with the weight held in the form that is fastest here."""

    def __init__(self, form: LinearForm, *, in_features: int, out_features: int) -> None:
        self._form = form
        self.in_features = in_features
        self.out_features = out_features

    @property
    def weight_bytes(self) -> int:
        """Bytes that this object keeps for the weight, all forms together."""
        return self._form.weight_bytes

    @property
    def form_name(self) -> str:
        return self._form.name

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x [rows, in] fp32 -> [rows, out] fp32, into `out` if given. Rows may be strided; features may not."""
        rows, features = x.shape
        if features != self.in_features or x.dtype != torch.float32 or x.stride(1) != 1:
            raise InvariantError(
                f"linear takes fp32 [rows, {self.in_features}] contiguous along features, "
                f"not {x.dtype} {tuple(x.shape)} with strides {x.stride()}"
            )
        if out is None:
            out = torch.empty((rows, self.out_features), dtype=torch.float32)
        elif out.shape != (rows, self.out_features) or out.dtype != torch.float32 or out.stride(1) != 1:
            raise InvariantError(
                f"out must be fp32 [{rows}, {self.out_features}] contiguous along features, "
                f"not {out.dtype} {tuple(out.shape)} with strides {out.stride()}"
            )
        if rows:
            self._form.apply(x, out)
        return out

    def weight_rows(self, ids: Tensor) -> Tensor:
        """Rows `ids` (int64 [n]) of the weight as fp32 [n, in]: an embedding lookup on a tied output matrix."""
        rows = self._form.weight_rows(ids)
        if rows is None:
            raise InvariantError(f"the {self._form.name} form does not give its rows back")
        return rows
