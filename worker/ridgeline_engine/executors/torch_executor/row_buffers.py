"""Memory for results that is taken once and reused: no allocation, and no fresh pages, in a step."""

import torch
from torch import Tensor


class RowBuffers:
    """fp32 buffers [rows, *width], one a width; they grow to the most rows that were asked for.

    What `take` gives is overwritten by the next user of a buffer of that width.
    """

    def __init__(self) -> None:
        self._whole: dict[tuple[int, ...], Tensor] = {}
        self._current: dict[tuple[int, ...], tuple[int, Tensor]] = {}

    def take(self, rows: int, *width: int) -> Tensor:
        """A contiguous tensor [rows, *width] with unknown contents."""
        found = self._current.get(width)
        if found is not None and found[0] == rows:
            return found[1]
        whole = self._whole.get(width)
        if whole is None or len(whole) < rows:
            whole = self._whole[width] = torch.empty((rows, *width), dtype=torch.float32)
        view = whole[:rows]
        self._current[width] = (rows, view)
        return view
