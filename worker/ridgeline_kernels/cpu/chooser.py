"""Packs a weight into the forms chosen for its shape."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError
from torch import Tensor

from ridgeline_kernels.cpu.big_pages import BigPages
from ridgeline_kernels.cpu.build import cpu_identity, read_proc
from ridgeline_kernels.cpu.choice import ChoiceFile, choose_forms, measure
from ridgeline_kernels.cpu.forms import LinearForm, NativeForm, OneDnnForm, TorchForm
from ridgeline_kernels.cpu.linear import ROW_BUCKETS, PackedLinear
from ridgeline_kernels.cpu.native import NativeLibrary
from ridgeline_kernels.cpu.quant_forms import NativeQuantForm, TorchQuantForm
from ridgeline_kernels.cpu.quantised import QuantFormat, RoundingError

FormName = Literal["auto", "native", "onednn", "torch", "torch-fp32"]
ONEDNN_ROWS_HINT = 32

_log = logging.getLogger(__name__)


class LinearChooser:
    """Knows the forms this machine has, and which were chosen for each shape."""

    def __init__(
        self,
        cache_dir: Path,
        library: NativeLibrary | None,
        threads: int,
        *,
        clock: Clock,
        bf16_products: bool | None = None,
    ) -> None:
        """`bf16_products` says whether torch multiplies bf16 in hardware (asks torch if None)."""
        if bf16_products is None:
            bf16_products = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self._bf16_products = bf16_products
        self._library = library
        self._threads = threads
        self._clock = clock
        self._memory = BigPages()
        built = library.path.name if library else "no library"
        facts = (cpu_identity(read_proc("cpuinfo")), built, torch.__version__, f"{threads} threads")
        self._file = ChoiceFile(cache_dir, "; ".join(facts))

    def pack(self, weight: Tensor, bias: Tensor | None, *, form: FormName) -> PackedLinear:
        """See CpuOps.pack_linear."""
        makers = self._makers(weight, bias)
        out, features = weight.shape
        if form != "auto" and form not in makers:
            raise InvariantError(
                f"the {form} form of {weight.dtype} weights does not work here; take one of {', '.join(makers)}"
            )
        names = dict.fromkeys(ROW_BUCKETS, form) if form != "auto" else self._choice(makers, weight)
        made = {name: makers[name]() for name in set(names.values())}
        forms = {rows: made[name] for rows, name in names.items()}
        return PackedLinear(forms, in_features=features, out_features=out)

    def pack_quantised(
        self, weight: Tensor, bias: Tensor | None, quant: QuantFormat
    ) -> tuple[PackedLinear, RoundingError]:
        """See CpuOps.pack_quantised."""
        form: NativeQuantForm | TorchQuantForm
        if self._library is None:
            form = TorchQuantForm(weight, bias, quant)
        else:
            form = NativeQuantForm(
                self._library, weight, bias, quant, threads=self._threads, memory=self._memory
            )
        out, features = weight.shape
        forms = dict.fromkeys(ROW_BUCKETS, form)
        return PackedLinear(forms, in_features=features, out_features=out), form.error

    def _makers(self, weight: Tensor, bias: Tensor | None) -> dict[str, Callable[[], LinearForm]]:
        makers: dict[str, Callable[[], LinearForm]] = {}
        library = self._library
        if library is not None:
            makers["native"] = lambda: NativeForm(
                library, weight, bias, threads=self._threads, memory=self._memory
            )
        if weight.dtype == torch.float32 or self._bf16_products:
            makers["onednn"] = lambda: OneDnnForm(weight, bias, rows_hint=ONEDNN_ROWS_HINT)
        makers["torch"] = lambda: TorchForm(weight, bias)
        makers["torch-fp32"] = lambda: TorchForm(weight.float(), bias, name="torch-fp32")
        return makers

    def _choice(self, makers: dict[str, Callable[[], LinearForm]], weight: Tensor) -> dict[int, str]:
        """fp32 is for exact results: native, or torch without a compiler. bf16 is measured where torch has it in
        hardware; elsewhere torch emulates it many times slower, and without a compiler a widened copy is best."""
        if weight.dtype == torch.float32 or not self._bf16_products:
            return dict.fromkeys(ROW_BUCKETS, "native" if "native" in makers else "torch-fp32")
        out, features = weight.shape
        shape = f"{out}x{features}"
        kept = self._file.get(shape)
        if kept is not None and set(kept) == set(ROW_BUCKETS) and set(kept.values()) <= set(makers):
            return kept
        compared = {name: make for name, make in makers.items() if name != "torch-fp32"}
        timings = measure(compared, in_features=features, out_features=out, clock=self._clock)
        chosen = choose_forms(timings)
        _log.info("linear %s: forms by rows %s from milliseconds %s", shape, chosen, timings)
        self._file.put(shape, chosen)
        return chosen
