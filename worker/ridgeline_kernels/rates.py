"""What this machine's memory and arithmetic give: copies, reads, matrix products, and a model's linear layers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from ridgeline_contracts.clock import Clock
from torch import Tensor

from ridgeline_kernels.cpu.ops import load_cpu_ops

_COPY_BYTES: Final = 256 * 2**20
"""Larger than any last-level cache."""
_ACTIVATION_SPREAD: Final = 0.1
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """y [rows, outputs] = x [rows, inputs] W^T."""

    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class RateProbe:
    """Times by the lowest of `repeats`: other processes only ever add to a time."""

    clock: Clock
    repeats: int

    def lowest_ms(self, work: Callable[[], object]) -> float:
        """After one run that is not counted. Above 0."""
        work()
        found = []
        for _ in range(self.repeats):
            started_ms = self.clock.monotonic_ms()
            work()
            found.append(self.clock.monotonic_ms() - started_ms)
        return max(min(found), 1e-6)

    def copy_bytes_per_s(self) -> float:
        """Read and written bytes together."""
        source = torch.ones(_COPY_BYTES // 4)
        target = torch.empty_like(source)
        return 2 * _COPY_BYTES / self.lowest_ms(lambda: target.copy_(source)) * 1e3

    def read_bytes_per_s(self) -> float:
        """A sum over memory."""
        source = torch.ones(_COPY_BYTES // 4)
        return _COPY_BYTES / self.lowest_ms(source.sum) * 1e3

    def matmul_flops_per_s(self, dtype: str, rows: int, shape: MatrixShape) -> float:
        """The library's product of random matrices; `dtype` fp32 or bf16."""
        x = torch.randn(rows, shape.inputs).to(DTYPES[dtype])
        weight = torch.randn(shape.outputs, shape.inputs).to(DTYPES[dtype])
        took_ms = self.lowest_ms(lambda: torch.nn.functional.linear(x, weight))
        return 2.0 * rows * shape.inputs * shape.outputs / took_ms * 1e3


class LinearLayers:
    """Copies of a model's layers in the form that the engine holds them in; random weights, since only shapes
    matter."""

    def __init__(
        self,
        shapes: Sequence[MatrixShape],
        *,
        layers: int,
        dtype: str,
        threads: int,
        kernel_cache: Path,
        clock: Clock,
    ) -> None:
        ops = load_cpu_ops(kernel_cache, threads, clock=clock)
        self._widths = sorted({shape.inputs for shape in shapes})
        self._layers = [
            [ops.pack_linear(_random(shape, DTYPES[dtype])) for shape in shapes] for _ in range(layers)
        ]

    def lowest_ms(self, rows: int, probe: RateProbe) -> float:
        """All matrices one after the other, so that weights come from memory as in a step."""
        inputs = {width: torch.randn(rows, width).mul_(_ACTIVATION_SPREAD) for width in self._widths}
        outs: dict[int, Tensor] = {}
        for linear in self._layers[0]:
            outs.setdefault(linear.out_features, torch.empty(rows, linear.out_features))

        def work() -> None:
            for layer in self._layers:
                for linear in layer:
                    linear(inputs[linear.in_features], outs[linear.out_features])

        with torch.inference_mode():
            return probe.lowest_ms(work)


def set_threads(threads: int) -> str:
    """Of torch's pool in this process. Returns torch's version, which belongs to what is measured then."""
    torch.set_num_threads(threads)
    return str(torch.__version__)


def _random(shape: MatrixShape, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape.outputs, shape.inputs).div_(math.sqrt(shape.inputs)).to(dtype)
