"""Reads GGUF files: metadata and tensor directory at once, tensor bytes when asked.

The layout is that of the GGUF specification, versions 2 and 3, little-endian. The `gguf` package's own reader
makes an array per string, six seconds for a vocabulary of 49,152; this one takes half a second, and checks
every read against the end of the file, so that a cut or damaged file is named as such.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from ridgeline_contracts.errors import NotFound, SettingsError, Unsupported

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT_BYTES = 32
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor directory."""

    name: str
    shape: tuple[int, ...]
    """Outermost dimension first (the file stores it innermost first)."""
    kind: GGMLQuantizationType
    offset_bytes: int
    """From the start of the file."""
    size_bytes: int


class GgufFile:
    """An open GGUF file; use as a context manager.

    `metadata` maps keys to Python scalars, strings or lists; `tensors` maps names to entries in file order.
    Raises NotFound for a missing file, SettingsError for one that is not GGUF, is cut short or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as opened:
                self._bytes = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise NotFound(f"no GGUF file at {path}") from error
        except ValueError as error:
            raise SettingsError(f"{path} is empty: copy or download it again") from error
        try:
            self.metadata, self.tensors = _Parser(self._bytes).parse()
        except (struct.error, UnicodeDecodeError, _Damaged) as error:
            self._bytes.close()
            raise SettingsError(
                f"{path} is not a whole GGUF file ({error}): copy or download it again"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bytes.close()

    def read(self, tensor: GgufTensor) -> npt.NDArray[np.float32]:
        """The tensor's values as float32 of `tensor.shape`, dequantised. Raises Unsupported for a format
        that cannot be dequantised here."""
        raw = self._bytes[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(*tensor.shape[:-1], -1)
        try:
            values = dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise Unsupported(
                f"tensor {tensor.name} of {self.path} is stored as {tensor.kind.name}, which cannot be read: "
                "use a file in F32, F16, BF16 or one of the Q formats"
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32).reshape(tensor.shape)


class _Damaged(Exception):
    """Something in the file that cannot be so; the message says what."""


class _Parser:
    """One pass over header, metadata and tensor directory."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def parse(self) -> tuple[dict[str, Any], dict[str, GgufTensor]]:
        if self._take(4) != _MAGIC:
            raise _Damaged("it does not start with the letters GGUF")
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise _Damaged(f"format version {version}, this reads 2 and 3 in little-endian order")
        tensor_count, pair_count = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        entries = [self._entry() for _ in range(tensor_count)]
        alignment_bytes = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
        if not isinstance(alignment_bytes, int) or alignment_bytes <= 0:
            raise _Damaged(f"general.alignment is {alignment_bytes!r}")
        start = -(-self._at // alignment_bytes) * alignment_bytes
        tensors = {entry[0]: self._tensor(*entry, start=start) for entry in entries}
        if len(tensors) != len(entries):
            raise _Damaged("two tensors have one name")
        return metadata, tensors

    def _take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise _Damaged(f"it ends after {len(self._data)} bytes, within its header")
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def _scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self._take(layout.size))[0]

    def _string(self) -> str:
        return self._take(self._scalar("Q")).decode("utf-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _Damaged(f"a metadata value has the unknown kind {kind}")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in _SCALARS:
            layout = struct.Struct("<" + _SCALARS[kind])
            return [value for (value,) in layout.iter_unpack(self._take(count * layout.size))]
        return [self._value(kind) for _ in range(count)]

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (outermost first), kind, offset from the start of the tensor data."""
        name, dimensions = self._string(), self._scalar("I")
        if not 0 < dimensions <= _MAX_DIMENSIONS:
            raise _Damaged(f"tensor {name} has {dimensions} dimensions")
        innermost_first = [self._scalar("Q") for _ in range(dimensions)]
        return name, tuple(reversed(innermost_first)), self._scalar("I"), self._scalar("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int, *, start: int) -> GgufTensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError as error:
            raise _Damaged(f"tensor {name} has the unknown format {kind}") from error
        block_elements, block_bytes = GGML_QUANT_SIZES[quantization]
        if shape[-1] % block_elements or 0 in shape:
            raise _Damaged(f"tensor {name} of shape {shape} does not divide into blocks of {block_elements}")
        size_bytes = math.prod(shape) // block_elements * block_bytes
        if start + offset + size_bytes > len(self._data):
            raise _Damaged(f"it ends after {len(self._data)} bytes, before the end of tensor {name}")
        return GgufTensor(name, shape, quantization, start + offset, size_bytes)
