"""Choosing tokens: what the sampler needs of each row of logits, row by row in C."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ridgeline_contracts.errors import InvariantError
from torch import Tensor

from ridgeline_kernels.cpu.checks import check_dense
from ridgeline_kernels.cpu.native import NativeLibrary

_MOST_WANTED = 1024
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DrawColumns:
    """How each of n rows chooses; every array has n entries."""

    temperature: npt.NDArray[np.float32]
    """None is 0."""
    top_k: npt.NDArray[np.int64]
    """0, or as many as the vocabulary, keeps all."""
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]
    uniform: npt.NDArray[np.float64]
    """In [0, 1)."""


class CpuTokens:
    """Draws tokens and finds the most likely ones. A row's result does not depend on the rows beside it."""

    def __init__(self, library: NativeLibrary, *, threads: int) -> None:
        self._library = library
        self._threads = threads
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def best(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens int64 [n], logits fp32 [n]): the largest of each row of logits fp32 [n, vocab], the lowest token on
        a tie. A row that holds NaN gives token 0 and NaN."""
        count, vocab = logits.shape
        check_dense("logits", logits, (count, vocab), torch.float32)
        tokens = torch.empty(count, dtype=torch.int64)
        best = torch.empty(count, dtype=torch.float32)
        self._library.best(logits.data_ptr(), vocab, count, tokens.data_ptr(), best.data_ptr(), self._threads)
        return tokens, best

    def draw(self, logits: Tensor, best: Tensor, rows: Rows, columns: DrawColumns) -> Tensor:
        """int64 [n]: temperature, top-k, top-p, min-p, then the choice by `uniform`.

        logits fp32 [any, vocab], dense; best fp32 [n], the largest logit of each of `rows`. Ties at a boundary are
        kept whole. A row whose best is not finite gets token 0.
        """
        vocab = _check(logits, rows)
        check_dense("best", best, (len(rows),), torch.float32)
        dense = DrawColumns(
            *(
                _column(len(rows), array, kind)
                for array, kind in (
                    (columns.temperature, np.float32),
                    (columns.top_k, np.int64),
                    (columns.top_p, np.float64),
                    (columns.min_p, np.float64),
                    (columns.uniform, np.float64),
                )
            )
        )
        needed = self._library.draw_scratch(vocab) * self._threads
        if len(self._scratch) < needed:
            self._scratch = torch.empty(needed, dtype=torch.uint8)
        index = np.ascontiguousarray(rows)
        tokens = torch.empty(len(rows), dtype=torch.int64)
        self._library.draw(
            logits.data_ptr(),
            vocab,
            index.ctypes.data,
            len(rows),
            best.data_ptr(),
            dense.temperature.ctypes.data,
            dense.top_k.ctypes.data,
            dense.top_p.ctypes.data,
            dense.min_p.ctypes.data,
            dense.uniform.ctypes.data,
            tokens.data_ptr(),
            self._scratch.data_ptr(),
            self._threads,
        )
        return tokens

    def most_likely(self, logits: Tensor, rows: Rows, count: int) -> tuple[Tensor, Tensor]:
        """(ids int64 [n, count], normalisers float64 [n, 1]) of the given rows of logits fp32 [any, vocab].

        Ids by falling logit, then by rising id; a logit less its row's normaliser is its logarithm of probability. A
        row that is not finite gives ids of the vocabulary and values without meaning.
        """
        vocab = _check(logits, rows)
        if not 0 <= count <= min(vocab, _MOST_WANTED):
            raise InvariantError(f"{count} most likely tokens of {vocab}: give 0 to {_MOST_WANTED}")
        index = np.ascontiguousarray(rows)
        ids = torch.zeros((len(rows), count), dtype=torch.int64)
        normalisers = torch.empty((len(rows), 1), dtype=torch.float64)
        self._library.most_likely(
            logits.data_ptr(),
            vocab,
            index.ctypes.data,
            len(rows),
            count,
            ids.data_ptr(),
            normalisers.data_ptr(),
            self._threads,
        )
        return ids, normalisers


def _check(logits: Tensor, rows: Rows) -> int:
    """The vocabulary's size."""
    held, vocab = logits.shape
    check_dense("logits", logits, (held, vocab), torch.float32)
    if len(rows) and not (rows.min() >= 0 and rows.max() < held):
        raise InvariantError(f"rows {rows.min()} to {rows.max()} of {held} rows of logits")
    return vocab


def _column(rows: int, array: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
    if array.shape != (rows,):
        raise InvariantError(f"a column of {rows} rows has shape {array.shape}")
    return np.ascontiguousarray(array, dtype=kind)
