"""The fixed grid of steps that a calibration measures, and which of its cells are judged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.step import StepShape


@dataclass(frozen=True, slots=True)
class GridAxes:
    """Ascending values of each axis."""

    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    contexts: tuple[int, ...] = (16, 64, 256, 1024, 3072, 6144)
    chunks: tuple[int, ...] = (0, 16, 64, 256, 1024)


FULL_AXES: Final = GridAxes()
QUICK_AXES: Final = GridAxes((1, 4, 16), (16, 256, 2048), (0, 64, 256))


@dataclass(frozen=True, slots=True)
class Cell:
    """One step: `batch` rows that decode behind `context_tokens` each, and a chunk behind as many."""

    batch: int
    context_tokens: int
    chunk_tokens: int
    is_judged: bool
    """Left out of the fit: every other cell, as on a checkerboard in three dimensions."""

    @property
    def shape(self) -> StepShape:
        chunk = self.chunk_tokens
        return StepShape(
            decode_rows=self.batch,
            context_tokens=self.batch * self.context_tokens,
            prefill_tokens=chunk,
            prefill_context_tokens=chunk * self.context_tokens + chunk * chunk // 2,
        )

    @property
    def tokens(self) -> int:
        return self.batch + self.chunk_tokens

    @property
    def sampled_rows(self) -> int:
        """The decode rows, and the end of the chunk."""
        return self.batch + (1 if self.chunk_tokens else 0)

    def __str__(self) -> str:
        return f"batch {self.batch}, context {self.context_tokens}, chunk {self.chunk_tokens}"


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells that fit, and the tokens that each slot must have room for to run any of them."""

    cells: tuple[Cell, ...]
    slot_tokens: tuple[int, ...]
    """Of the decode slots; the chunk's slot comes last."""
    omitted: tuple[Cell, ...]
    """Cells that the KV memory or the model's context cannot hold."""

    @property
    def kv_tokens(self) -> int:
        return sum(self.slot_tokens)


def grid_for(axes: GridAxes, *, kv_tokens: int, max_context_tokens: int, block_tokens: int) -> Grid:
    """The cells whose rows fit a KV memory of `kv_tokens` and a model of `max_context_tokens`.

    Slots are laid out once for all cells, so deep contexts at large batches are given up first. Raises
    SettingsError where not even the smallest cells fit on both colours of the board.
    """
    slots = _slots(axes, kv_tokens, max_context_tokens, block_tokens)
    kept: list[Cell] = []
    omitted: list[Cell] = []
    for i, batch in enumerate(axes.batches):
        for j, context in enumerate(axes.contexts):
            for k, chunk in enumerate(axes.chunks):
                cell = Cell(batch, context, chunk, is_judged=(i + j + k) % 2 == 1)
                fits = slots[batch - 1] > context and slots[-1] >= context + chunk
                (kept if fits else omitted).append(cell)
    if len({cell.is_judged for cell in kept}) < 2:
        least = _rounded(axes.contexts[0] + axes.chunks[-1], block_tokens)
        least += axes.batches[-1] * _rounded(axes.contexts[0] + 1, block_tokens)
        raise SettingsError(
            f"kv_tokens={kv_tokens} in contexts up to {max_context_tokens} hold {len(kept)} cells of the grid: "
            f"give memory for at least {least} tokens, and contexts of {axes.contexts[0] + axes.chunks[-1]}",
            param="kv_bytes",
        )
    return Grid(tuple(kept), slots, tuple(omitted))


def _slots(axes: GridAxes, kv_tokens: int, max_context_tokens: int, block_tokens: int) -> tuple[int, ...]:
    """The deepest context that the first slots can have, then the next ones as deep as what is left allows."""
    chunk, shallow = axes.chunks[-1], _rounded(axes.contexts[0] + 1, block_tokens)
    room = kv_tokens - axes.batches[-1] * shallow
    deepest = max(
        (
            c
            for c in axes.contexts
            if c + max(1, chunk) <= max_context_tokens and _rounded(c + chunk, block_tokens) <= room
        ),
        default=0,
    )
    if deepest == 0:
        return (0,) * (axes.batches[-1] + 1)
    left = kv_tokens - (chunk_slot := _rounded(deepest + chunk, block_tokens))
    found: list[int] = []
    for before, batch in zip((0, *axes.batches), axes.batches, strict=False):
        rows = batch - before
        # Later slots keep room for the shallowest context.
        spare = (axes.batches[-1] - batch) * shallow
        room = (left - spare) // rows
        fits = [
            size for c in axes.contexts if c <= deepest and (size := _rounded(c + 1, block_tokens)) <= room
        ]
        size = max(fits, default=0)
        found += [size] * rows
        left -= size * rows
    return (*found, chunk_slot)


def _rounded(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens) * block_tokens


def axes_of(cells: Sequence[Cell]) -> GridAxes:
    """The values that occur, ascending."""
    return GridAxes(
        tuple(sorted({cell.batch for cell in cells})),
        tuple(sorted({cell.context_tokens for cell in cells})),
        tuple(sorted({cell.chunk_tokens for cell in cells})),
    )
