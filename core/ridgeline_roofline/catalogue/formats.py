"""Number formats of weights, KV and activations: bytes an element, and the arithmetic they run in."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ridgeline_contracts.errors import SettingsError


class Dtype(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    @property
    def bytes_per_element(self) -> float:
        """Block scales included: they are read with the elements."""
        return _BYTES[self]

    @property
    def bits_per_element(self) -> float:
        return 8 * _BYTES[self]


_BYTES: Final = {
    Dtype.FP32: 4.0,
    Dtype.BF16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.INT8: 1.0,
    Dtype.INT4: 0.5 + 2 / 128,  # one 16-bit scale for 128 elements
    Dtype.MXFP4: 0.5 + 1 / 32,  # one 8-bit power of two for 32 elements
    Dtype.NVFP4: 0.5 + 1 / 16,  # one 8-bit E4M3 scale for 16 elements
}


@dataclass(frozen=True, slots=True)
class Formats:
    """What weights are stored in, what KV is stored in, and what the matrices are multiplied in."""

    weights: Dtype = Dtype.BF16
    kv: Dtype = Dtype.BF16
    activations: Dtype = Dtype.BF16


def parse_dtype(text: str, *, name: str) -> Dtype:
    """Raises SettingsError that lists the dtypes."""
    try:
        return Dtype(text)
    except ValueError:
        known = " ".join(Dtype)
        raise SettingsError(f"{name}={text!r} is no dtype: give one of {known}", param=name) from None


def arithmetic_of(weights: Dtype) -> Dtype:
    """What matrices of that format are usually multiplied in: weight-only formats are unpacked to BF16."""
    return {Dtype.FP32: Dtype.FP32, Dtype.FP8: Dtype.FP8, Dtype.NVFP4: Dtype.NVFP4}.get(weights, Dtype.BF16)
