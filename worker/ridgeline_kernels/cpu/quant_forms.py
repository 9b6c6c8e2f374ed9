"""The ways to hold a weight in codes of 8 or 4 bits and multiply by it."""

from typing import Final

from torch import Tensor
from torch.nn import functional

from ridgeline_kernels.cpu import packing, quant_packing
from ridgeline_kernels.cpu.big_pages import BigPages
from ridgeline_kernels.cpu.forms import FORMAT_CODES, LinearCall
from ridgeline_kernels.cpu.native import NativeLibrary
from ridgeline_kernels.cpu.packing import PANEL
from ridgeline_kernels.cpu.quantised import QuantFormat, Quantised, RoundingError, quantise

PIECE_WEIGHTS: Final = 1 << 22
"""Quantised at a time."""


class NativeQuantForm:
    """The C kernel on codes of 8 or 4 bits, against activations rounded to 16 bits of the largest in their group.

    A row's result is the same bit for bit whatever rows are computed beside it.
    """

    def __init__(
        self,
        library: NativeLibrary,
        weight: Tensor,
        bias: Tensor | None,
        quant: QuantFormat,
        *,
        threads: int,
        memory: BigPages,
    ) -> None:
        self.name = quant.name
        self._quant = quant
        self._linear = library.linear
        self._out, self._features = weight.shape
        self._packed = quant_packing.empty_packed(self._out, self._features, quant, memory)
        self.error = _quantise_into(self._packed, weight, quant)
        self._bias = None if bias is None else packing.pad_bias(bias, self._out)
        self._threads = threads
        self.weight_bytes = self._packed.nbytes
        self.call = LinearCall(
            weight_at=self._packed.data_ptr(),
            bias_at=None if self._bias is None else self._bias.data_ptr(),
            features=self._features,
            depth=quant.padded(self._features),
            out=self._out,
            format=FORMAT_CODES[quant.name],
            group=quant.group,
        )

    def apply(self, x: Tensor, out: Tensor) -> None:
        self.call.run(self._linear, x, out, threads=self._threads)

    def weight_rows(self, ids: Tensor) -> Tensor:
        return quant_packing.unpack_rows(self._packed, ids, self._features, self._quant)


class TorchQuantForm:
    """Codes in plain tensors, widened at each use: the way without a compiler."""

    def __init__(self, weight: Tensor, bias: Tensor | None, quant: QuantFormat) -> None:
        self.name = quant.name
        self._held = quantise(weight, quant)
        self._bias = None if bias is None else bias.float()
        self.error = RoundingError.of(weight, self._held)
        offsets = self._held.offsets
        self.weight_bytes = self._held.codes.nbytes + self._held.scales.nbytes
        self.weight_bytes += 0 if offsets is None else offsets.nbytes

    def apply(self, x: Tensor, out: Tensor) -> None:
        out.copy_(functional.linear(x, self._held.weight(), self._bias))

    def weight_rows(self, ids: Tensor) -> Tensor:
        held = self._held
        offsets = None if held.offsets is None else held.offsets[ids]
        return Quantised(held.codes[ids], held.scales[ids], offsets, held.features).weight()


def _quantise_into(packed: Tensor, weight: Tensor, quant: QuantFormat) -> RoundingError:
    """Piece by piece, so that no fp32 copy of a large weight is made."""
    error = RoundingError(0.0, 0.0)
    outputs = max(1, PIECE_WEIGHTS // (weight.shape[1] * PANEL)) * PANEL
    for begin in range(0, len(weight), outputs):
        piece = weight[begin : begin + outputs]
        found = quantise(piece, quant)
        error += RoundingError.of(piece, found)
        quant_packing.pack_panels(found, quant, packed[begin // PANEL : -(-(begin + len(piece)) // PANEL)])
    return error
