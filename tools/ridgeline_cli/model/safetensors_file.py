"""Writes a bfloat16 safetensors file tensor by tensor, so that a killed conversion goes on where it stopped.

The format: eight bytes of header length, a JSON header padded with spaces to eight, then the tensors' bytes
back to back. A journal holds one line for each tensor written; on resumption every tensor that it names is
hashed again, and writing goes on after the last one that is whole.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BFLOAT16_BYTES = 2


def to_bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bit patterns of the nearest bfloat16, ties to even; a NaN stays a NaN, too large becomes infinite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x0040)
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16)


def file_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Size of the file that holds tensors of these shapes."""
    return len(_header(shapes)) + sum(_tensor_bytes(shape) for shape in shapes.values())


class ResumableWriter:
    """Appends tensors in the order of `shapes` to `path`; `remaining()` says what is still to come.

    `origin` names what is being converted by what: a journal of another origin is thrown away. One writer at
    a time; the caller holds the model's lock.
    """

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[int, ...]], *, journal_path: Path, origin: str
    ) -> None:
        self.path = path
        self._journal_path = journal_path
        self._names = tuple(shapes)
        self._shapes = dict(shapes)
        self._header = _header(shapes)
        sizes = [len(self._header), *(_tensor_bytes(shape) for shape in shapes.values())]
        self._ends_bytes = tuple(accumulate(sizes))
        """Where the header ends, then where each tensor ends."""
        self._origin = hashlib.sha256(origin.encode() + b"\0" + self._header).hexdigest()
        self._done = self._resume()

    def remaining(self) -> tuple[str, ...]:
        """Names of the tensors that are not written yet, in the order in which `append` wants them."""
        return self._names[self._done :]

    @property
    def done_bytes(self) -> int:
        """Bytes that are in the file and known to be whole, header included."""
        return self._ends_bytes[self._done]

    def append(self, name: str, bits: npt.NDArray[np.uint16]) -> None:
        """Writes the next tensor. `bits` must have its shape; an out-of-order name is a bug."""
        assert name == self._names[self._done], f"{name} is out of order"
        assert bits.shape == self._shapes[name], f"{name} is {bits.shape}, not {self._shapes[name]}"
        data = bits.astype("<u2", copy=False).tobytes()
        with self.path.open("r+b") as opened:
            opened.seek(self.done_bytes)
            opened.write(data)
        # After the bytes, never before: a line in the journal promises that they are there.
        with self._journal_path.open("a", encoding="utf-8") as journal:
            journal.write(_journal_line(name, data))
        self._done += 1

    def finish(self) -> None:
        """Cuts off what an earlier run may have left behind the end and forces the file to the disk."""
        assert not self.remaining(), f"{len(self.remaining())} tensors are missing"
        with self.path.open("r+b") as opened:
            opened.truncate(self.done_bytes)
            os.fsync(opened.fileno())

    def _resume(self) -> int:
        """Number of whole tensors on disk; starts both files anew if missing or of another origin."""
        lines = self._journal_lines()
        if lines is None:
            self._journal_path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
            self.path.write_bytes(self._header)
            self._journal_path.write_text(self._origin + "\n", encoding="utf-8")
            return 0
        done = self._whole_tensors(lines)
        rewritten = self._journal_path.with_name(self._journal_path.name + ".new")
        rewritten.write_text("".join([self._origin + "\n", *lines[:done]]), encoding="utf-8")
        rewritten.replace(self._journal_path)
        return done

    def _journal_lines(self) -> list[str] | None:
        """The journal's lines after the first; None unless journal and file are of this conversion."""
        if not (self.path.is_file() and self._journal_path.is_file()):
            return None
        lines = self._journal_path.read_text(encoding="utf-8").splitlines(keepends=True)
        with self.path.open("rb") as opened:
            same_header = opened.read(len(self._header)) == self._header
        return lines[1:] if lines[:1] == [self._origin + "\n"] and same_header else None

    def _whole_tensors(self, lines: list[str]) -> int:
        done = 0
        with self.path.open("rb") as opened:
            opened.seek(len(self._header))
            for line, (name, shape) in zip(lines, self._shapes.items(), strict=False):
                if line != _journal_line(name, opened.read(_tensor_bytes(shape))):
                    break
                done += 1
        return done


def _journal_line(name: str, data: bytes) -> str:
    return f"{name} {hashlib.sha256(data).hexdigest()}\n"


def _tensor_bytes(shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _BFLOAT16_BYTES


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        entries[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [at, at + _tensor_bytes(shape)],
        }
        at += _tensor_bytes(shape)
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
