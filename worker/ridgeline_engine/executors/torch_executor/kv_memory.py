"""The KV blocks of all layers as tensors, on the device and in a pool of the host that blocks are swapped to."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from ridgeline_contracts.clock import Clock
from ridgeline_contracts.errors import InvariantError, OutOfMemory
from ridgeline_contracts.kv import BlockId, GroupId, KVDtype, KVGroup
from torch import Tensor

from ridgeline_engine.seam import BlockCopy, CopyKind, KVAllocator

_MEASURED_BLOCKS, _MEASURED_TIMES, _SHORTEST_MS = 64, 3, 1e-3
_TORCH_DTYPES = {KVDtype.FP32: torch.float32, KVDtype.BF16: torch.bfloat16}


class KVMemory:
    """Per layer [blocks, heads, 2, block_tokens, head_dim]; layers follow each other in the model's order.

    On a CPU the device's memory is the allocator's. Raises OutOfMemory naming the size where it does not fit.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        *,
        blocks: int,
        allocator: KVAllocator,
        device: torch.device,
        host_blocks: int = 0,
    ) -> None:
        """`blocks` and `host_blocks` are those of each group. Pages of the host's pool are taken as they are used."""
        owners = {layer: group for group in groups for layer in group.layers}
        sizes = [owners[layer].layer_block_bytes * blocks for layer in sorted(owners)]
        memory = _bytes(sum(sizes), allocator, device)
        self.layers: list[Tensor] = []
        for layer, piece in zip(sorted(owners), torch.split(memory, sizes), strict=True):
            self.layers.append(
                piece.view(_TORCH_DTYPES[owners[layer].dtype]).view(_shape(owners[layer], blocks))
            )
        self._host = _host_pool([owners[layer] for layer in sorted(owners)], host_blocks, device)
        self._groups = {group.group: group for group in groups}

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Copies blocks in all layers of their groups, as if one after another.

        Raises InvariantError for a block that does not exist.
        """
        for run in _runs(copies):
            self._copy_run(run)

    def measure_copies(self, clock: Clock) -> float | None:
        """Bytes a millisecond between here and the host's pool, both ways taken together; None without a pool. Only
        before anything is in the blocks: some are overwritten."""
        groups = self._groups.values()
        blocks = min([_MEASURED_BLOCKS, *(len(tensor) for tensor in (*self.layers, *self._host))])
        if blocks == 0:
            return None
        copies = [
            BlockCopy(kind, group.group, BlockId(block), BlockId(block))
            for kind in (CopyKind.SWAP_OUT, CopyKind.SWAP_IN)
            for group in groups
            for block in range(blocks)
        ]
        took_ms = []
        for _ in range(_MEASURED_TIMES):
            started_ms = clock.monotonic_ms()
            self.copy(copies)
            took_ms.append(clock.monotonic_ms() - started_ms)
        moved_bytes = 2 * blocks * sum(group.block_bytes for group in groups)
        # The least, since the first time the host's pages are taken.
        return moved_bytes / max(min(took_ms), _SHORTEST_MS)

    def drop(self) -> None:
        """Lets go of the memory, so that the allocator can be closed. No tensor of a layer may be used
        after."""
        self.layers.clear()
        self._host.clear()

    def _copy_run(self, run: Sequence[BlockCopy]) -> None:
        kind, group = run[0].kind, run[0].group
        read = self._host if kind is CopyKind.SWAP_IN else self.layers
        written = self._host if kind is CopyKind.SWAP_OUT else self.layers
        layers = self._groups[group].layers
        sources = _index([copy.source for copy in run], len(read[layers[0]]), kind, group)
        targets = _index([copy.target for copy in run], len(written[layers[0]]), kind, group)
        for layer in layers:
            taken = read[layer][sources.to(read[layer].device)]
            written[layer][targets.to(written[layer].device)] = taken.to(written[layer].device)


def _runs(copies: Sequence[BlockCopy]) -> Iterator[list[BlockCopy]]:
    """Neighbouring copies of one kind and group that can be made at once: none of them touches what an earlier
    one wrote or, on the device, read."""
    run: list[BlockCopy] = []
    written: set[int] = set()
    for copy in copies:
        alike = bool(run) and (copy.kind, copy.group) == (run[0].kind, run[0].group)
        within = copy.kind is CopyKind.ON_DEVICE and copy.source in written
        if run and (not alike or within or copy.target in written):
            yield run
            run, written = [], set()
        run.append(copy)
        written.add(copy.target)
    if run:
        yield run


def _index(blocks: Sequence[int], limit: int, kind: CopyKind, group: GroupId) -> Tensor:
    if min(blocks) < 0 or max(blocks) >= limit:
        raise InvariantError(
            f"a copy of kind {kind} names block {max(blocks)} of group {group}, which has {limit} there"
        )
    return torch.tensor(blocks)


def _shape(group: KVGroup, blocks: int) -> tuple[int, ...]:
    return blocks, group.heads, group.parts, group.block_tokens, group.head_dim


def _host_pool(owners: Sequence[KVGroup], blocks: int, device: torch.device) -> list[Tensor]:
    """By layer. Pinned for a GPU, so that it copies by itself."""
    try:
        return [
            torch.empty(
                _shape(owner, blocks), dtype=_TORCH_DTYPES[owner.dtype], pin_memory=device.type == "cuda"
            )
            for owner in owners
        ]
    except RuntimeError as error:
        size_bytes = sum(owner.layer_block_bytes for owner in owners) * blocks
        raise OutOfMemory(
            f"{size_bytes} bytes of swapped KV do not fit on the host: give less --host-kv-memory"
        ) from error


def _bytes(size_bytes: int, allocator: KVAllocator, device: torch.device) -> Tensor:
    if device.type == "cpu":
        # By way of numpy, which holds on to the buffer: torch.frombuffer would let it go under a tensor.
        return torch.from_numpy(np.frombuffer(allocator.allocate(size_bytes), dtype=np.uint8))
    try:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{size_bytes} bytes of KV do not fit on {device}: lower kv_blocks") from error
