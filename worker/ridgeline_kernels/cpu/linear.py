"""A weight matrix packed for the CPU, as a callable."""

from collections.abc import Mapping

import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor

from ridgeline_kernels.cpu.forms import LinearCall, LinearForm, NativeForm
from ridgeline_kernels.cpu.quant_forms import NativeQuantForm

ROW_BUCKETS = (1, 4, 8, 32, 128)
"""Numbers of rows at which forms are compared; a call takes the last bucket that is not above its rows."""


class PackedLinear:
    """y = x @ weight^T + bias on fp32 activations, with the weight held in the form or two that are fastest here.

    Memory: one copy of the weight in its own dtype, or two (never more) where one form wins clearly for few rows
    and another for many; `weight_bytes` counts both.
    """

    def __init__(self, forms: Mapping[int, LinearForm], *, in_features: int, out_features: int) -> None:
        """`forms` names the form of each of ROW_BUCKETS."""
        self._small, self._four, self._eight, self._thirty_two, self._large = (forms[b] for b in ROW_BUCKETS)
        self._forms = tuple({id(form): form for form in forms.values()}.values())
        self.in_features = in_features
        self.out_features = out_features

    @property
    def weight_bytes(self) -> int:
        """Bytes that this object keeps for the weight, all forms together."""
        return sum(form.weight_bytes for form in self._forms)

    @property
    def form_names(self) -> tuple[str, ...]:
        """The form of each of ROW_BUCKETS."""
        forms = (self._small, self._four, self._eight, self._thirty_two, self._large)
        return tuple(form.name for form in forms)

    @property
    def native_call(self) -> LinearCall | None:
        """How the C library takes the weight, where one native form serves every number of rows."""
        form = self._forms[0]
        if len(self._forms) == 1 and isinstance(form, NativeForm | NativeQuantForm):
            return form.call
        return None

    def _form(self, rows: int) -> LinearForm:
        if rows < 8:
            return self._small if rows < 4 else self._four
        if rows < 32:
            return self._eight
        return self._thirty_two if rows < 128 else self._large

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
            self._form(rows).apply(x, out)
        return out

    def weight_rows(self, ids: Tensor) -> Tensor:
        """Rows `ids` (int64 [n]) of the weight as fp32 [n, in]: an embedding lookup on a tied output matrix.

        Raises InvariantError if no form kept can give them back (oneDNN alone); form "native" always can.
        """
        giving = [form for form in self._forms if form.name != "onednn"]
        return (giving or list(self._forms))[0].weight_rows(ids)
