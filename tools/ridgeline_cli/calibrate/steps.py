"""Drives the real torch executor through the cells of a grid and times each step.

KV is filled with a small constant before the first step, so that its pages are real memory and its numbers are
finite; a step's duration does not depend on what they say. A cell runs over and over in the same slots at the same
positions. Loads torch when called.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline_contracts.clock import Clock
from ridgeline_contracts.kv import BlockId
from ridgeline_contracts.model_folder import ModelFolder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.sizes import DtypeSetting
from ridgeline_engine.seam import (
    BlockAppend,
    Executor,
    Generation,
    LaunchId,
    RowPlan,
    SlotAdmit,
    SlotId,
    StepPlan,
)
from ridgeline_roofline.calibration.grid import Cell, Grid
from ridgeline_transfer.allocator import PrivateAllocator

if TYPE_CHECKING:
    from ridgeline_engine.executors.torch_executor.executor import TorchExecutor

_FILL = 0x3C
"""Repeated it reads 0.0115 in bf16 and in fp32."""
_FILL_PIECE_BYTES = 1 << 22
_GENERATION = Generation(1)
_TOKEN = 100


class FilledAllocator:
    """An allocator for the engine whose memory is written to from the start."""

    def __init__(self) -> None:
        self._pages = PrivateAllocator()

    def allocate(self, size_bytes: int) -> memoryview:
        view = self._pages.allocate(size_bytes)
        piece = bytes([_FILL]) * _FILL_PIECE_BYTES
        for start in range(0, size_bytes, len(piece)):
            end = min(start + len(piece), size_bytes)
            view[start:end] = piece[: end - start]
        return view

    def close(self) -> None:
        self._pages.close()


@dataclass(frozen=True, slots=True)
class ExecutorOptions:
    """How the engine's executor is to run."""

    dtype: DtypeSetting
    threads: int
    block_tokens: int
    kernel_cache: Path
    device: str = "cpu"


@contextmanager
def opened_executor(
    folder: ModelFolder, options: ExecutorOptions, grid: Grid, clock: Clock
) -> Iterator["TorchExecutor"]:
    """The real executor with room for the grid; weights and KV are let go of at the end."""
    from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
    from ridgeline_engine.executors.torch_executor.settings import TorchSettings

    settings = TorchSettings(
        kv_blocks=grid.kv_tokens // options.block_tokens,
        cache_dir=options.kernel_cache,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        block_tokens=options.block_tokens,
        max_batch=len(grid.slot_tokens),
    )
    allocator = FilledAllocator()
    executor = TorchExecutor(folder, settings, allocator=allocator, clock=clock)
    try:
        yield executor
    finally:
        executor.close()
        allocator.close()


class StepTimer:
    """Times cells on an executor that nobody else drives."""

    def __init__(self, executor: Executor, grid: Grid) -> None:
        self._executor = executor
        self._grid = grid
        self._launches = itertools.count()
        self._run(self._admission())

    def measure_ms(self, cell: Cell) -> float:
        """Wall milliseconds of one step on the device: forward pass and sampling."""
        rows = [self._row(SlotId(index), cell.context_tokens, 1) for index in range(cell.batch)]
        if cell.chunk_tokens:
            last = SlotId(len(self._grid.slot_tokens) - 1)
            rows.append(self._row(last, cell.context_tokens, cell.chunk_tokens))
        return self._run(StepPlan(LaunchId(next(self._launches)), tuple(rows)))

    def _run(self, plan: StepPlan) -> float:
        self._executor.launch(plan)
        self._executor.sample(plan.launch, {})
        return self._executor.complete(plan.launch).device_ms

    def _row(self, slot: SlotId, start: int, count: int) -> RowPlan:
        return RowPlan(slot, _GENERATION, (_TOKEN,) * count, start, 1, 0)

    def _admission(self) -> StepPlan:
        """Gives every slot its blocks, all groups alike."""
        sampling = SamplingParams(max_tokens=1 << 20, temperature=0.0, ignore_eos=True)
        admits, appends = [], []
        for group in self._executor.kv_groups:
            blocks = itertools.count()
            for index, tokens in enumerate(self._grid.slot_tokens):
                taken = tuple(BlockId(next(blocks)) for _ in range(tokens // group.block_tokens))
                appends.append(BlockAppend(SlotId(index), group.group, taken))
        for index in range(len(self._grid.slot_tokens)):
            admits.append(SlotAdmit(SlotId(index), _GENERATION, sampling, 0, 0, (_TOKEN,)))
        return StepPlan(LaunchId(next(self._launches)), (), (), tuple(admits), tuple(appends))
