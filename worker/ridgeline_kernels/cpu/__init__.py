"""Operators of a transformer step on the CPU: C where a compiler is at hand, plain torch elsewhere.

`load_cpu_ops` compiles the C sources in `csrc` once per machine into a cache folder. Weights may be bf16 or
fp32; activations are fp32 throughout.
"""

from ridgeline_kernels.cpu.big_pages import BigPages
from ridgeline_kernels.cpu.linear import PackedLinear
from ridgeline_kernels.cpu.ops import CpuOps, load_cpu_ops
from ridgeline_kernels.cpu.quantised import QuantFormat, RoundingError
from ridgeline_kernels.cpu.sampling import CpuTokens, DrawColumns

__all__ = [
    "BigPages",
    "CpuOps",
    "CpuTokens",
    "DrawColumns",
    "PackedLinear",
    "QuantFormat",
    "RoundingError",
    "load_cpu_ops",
]
