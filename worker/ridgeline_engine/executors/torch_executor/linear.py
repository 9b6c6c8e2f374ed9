"""A weight matrix in memory: how it may be split over devices, what format it has, and an adapter on top."""

from typing import Protocol

from torch import Tensor

from ridgeline_engine.executors.matrices import Partition, WeightFormat
from ridgeline_engine.executors.torch_executor.ops import PackedMatrix


class Adapter(Protocol):
    def add(self, x: Tensor, y: Tensor) -> None:
        """Adds its product with x [rows, in] to y [rows, out] in place."""
        ...


class Linear:
    """y = x W^T + b, plus what the adapter adds."""

    __slots__ = ("_matrix", "adapter", "partition", "weight_format")

    def __init__(
        self,
        matrix: PackedMatrix,
        *,
        partition: Partition,
        weight_format: WeightFormat,
        adapter: Adapter | None = None,
    ) -> None:
        self._matrix = matrix
        self.partition = partition
        self.weight_format = weight_format
        self.adapter = adapter

    @property
    def matrix(self) -> PackedMatrix:
        return self._matrix

    def __call__(self, x: Tensor) -> Tensor:
        y = self._matrix(x)
        if self.adapter is not None:
            self.adapter.add(x, y)
        return y
