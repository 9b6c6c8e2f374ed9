"""The ways to hold a weight and multiply by it. Each keeps exactly one copy of the weight."""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from torch import Tensor
from torch.nn import functional

from ridgeline_kernels.cpu import packing
from ridgeline_kernels.cpu.big_pages import BigPages
from ridgeline_kernels.cpu.native import Function, NativeLibrary

FORMAT_CODES: Final = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
"""Of the C kernel's formats."""


class LinearForm(Protocol):
    """One held weight [out, in] with its bias."""

    name: str
    weight_bytes: int

    def apply(self, x: Tensor, out: Tensor) -> None:
        """out [rows, out] = x [rows, in] @ weight^T + bias; both fp32, rows > 0, contiguous within a row."""
        ...

    def weight_rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight as fp32 [n, in]. Raises InvariantError where the form cannot give them back."""
        ...


@dataclass(frozen=True, slots=True)
class LinearCall:
    """A packed weight as `rl_linear` takes it. Whoever holds one keeps the tensors behind the addresses alive."""

    weight_at: int
    bias_at: int | None
    features: int
    depth: int
    """Input features as packed: filled up to whole pairs or groups."""
    out: int
    format: int
    group: int = 0

    def run(self, linear: Function, x: Tensor, out: Tensor, *, threads: int) -> None:
        fault = linear(
            x.data_ptr(),
            x.stride(0),
            self.weight_at,
            self.bias_at,
            out.data_ptr(),
            out.stride(0),
            x.shape[0],
            self.features,
            self.depth,
            self.out,
            self.format,
            self.group,
            threads,
        )
        if fault:
            raise OutOfMemory(
                f"no memory for the scratch copy of activations {tuple(x.shape)}; lower the chunk size"
            )


class NativeForm:
    """The C kernel on panels of the weight in its own dtype. Activations stay fp32, but are rounded to bf16 against
    bf16 weights where the CPU has bf16 dot products.

    A row's result is the same bit for bit whatever rows are computed beside it.
    """

    name = "native"

    def __init__(
        self, library: NativeLibrary, weight: Tensor, bias: Tensor | None, *, threads: int, memory: BigPages
    ) -> None:
        self._linear = library.linear
        self._weight_rows = library.weight_rows
        out, self._features = weight.shape
        self._packed = packing.pack(weight, memory)
        self._bias = None if bias is None else packing.pad_bias(bias, out)
        self._threads = threads
        self.weight_bytes = self._packed.nbytes
        is_bf16 = weight.dtype == torch.bfloat16
        self.call = LinearCall(
            weight_at=self._packed.data_ptr(),
            bias_at=None if self._bias is None else self._bias.data_ptr(),
            features=self._features,
            depth=self._features + (self._features % 2 if is_bf16 else 0),
            out=out,
            format=FORMAT_CODES["bf16" if is_bf16 else "fp32"],
        )

    def apply(self, x: Tensor, out: Tensor) -> None:
        self.call.run(self._linear, x, out, threads=self._threads)

    def weight_rows(self, ids: Tensor) -> Tensor:
        call, found = self.call, torch.empty((len(ids), self._features), dtype=torch.float32)
        if self._weight_rows(
            call.weight_at,
            call.format,
            call.features,
            call.depth,
            call.out,
            ids.contiguous().data_ptr(),
            len(ids),
            found.data_ptr(),
        ):
            wrong = [each for each in ids.tolist() if not 0 <= each < call.out]
            raise InvariantError(f"row {wrong[0]} of a weight with {call.out}")
        return found


class OneDnnForm:
    """oneDNN's product on a weight in its own blocked layout; activations are cast to the weight's dtype."""

    name = "onednn"

    def __init__(self, weight: Tensor, bias: Tensor | None, *, rows_hint: int) -> None:
        """`rows_hint` is the number of rows that the layout is chosen for."""
        self._dtype = weight.dtype
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows_hint)
        self._bias = None if bias is None else bias.to(weight.dtype)
        self.weight_bytes = weight.nbytes

    def apply(self, x: Tensor, out: Tensor) -> None:
        cast = x.to(self._dtype).contiguous()
        out.copy_(torch.ops.mkldnn._linear_pointwise(cast, self._packed, self._bias, "none", [], ""))

    def weight_rows(self, ids: Tensor) -> Tensor:
        raise InvariantError("a oneDNN weight does not give its rows back; keep the embedding table apart")


class TorchForm:
    """torch's product on the weight as it is; activations are cast to the weight's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, name: str = "torch") -> None:
        self.name = name
        self._weight = weight.contiguous()
        self._bias = None if bias is None else bias.to(weight.dtype)
        self.weight_bytes = self._weight.nbytes

    def apply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(functional.linear(x.to(self._weight.dtype), self._weight, self._bias))

    def weight_rows(self, ids: Tensor) -> Tensor:
        return self._weight[ids].float()
