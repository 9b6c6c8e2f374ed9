"""The KV blocks of all layers as tensors over memory that an allocator gave."""

from collections.abc import Sequence

import numpy as np
import torch
from ridgeline_contracts.errors import OutOfMemory, Unsupported
from ridgeline_contracts.kv import KVDtype, KVGroup
from torch import Tensor

from ridgeline_engine.seam import BlockCopy, CopyKind, KVAllocator

_TORCH_DTYPES = {KVDtype.FP32: torch.float32, KVDtype.BF16: torch.bfloat16}


class KVMemory:
    """Per layer [blocks, heads, 2, block_tokens, head_dim]; layers follow each other in the model's order.

    On a CPU the memory is the allocator's. Raises OutOfMemory naming the size where it does not fit.
    """

    def __init__(
        self, groups: Sequence[KVGroup], *, blocks: int, allocator: KVAllocator, device: torch.device
    ) -> None:
        owners = {layer: group for group in groups for layer in group.layers}
        sizes = [owners[layer].layer_block_bytes * blocks for layer in sorted(owners)]
        memory = _bytes(sum(sizes), allocator, device)
        self.layers: list[Tensor] = []
        for layer, piece in zip(sorted(owners), torch.split(memory, sizes), strict=True):
            group = owners[layer]
            shape = (blocks, group.heads, group.parts, group.block_tokens, group.head_dim)
            self.layers.append(piece.view(_TORCH_DTYPES[group.dtype]).view(shape))
        self._groups = {group.group: group for group in groups}

    def copy(self, copy: BlockCopy) -> None:
        """Copies one block in all layers of its group."""
        if copy.kind is not CopyKind.ON_DEVICE:
            raise Unsupported(f"the torch executor has no swap space for a copy of kind {copy.kind}")
        for layer in self._groups[copy.group].layers:
            blocks = self.layers[layer]
            blocks[copy.target].copy_(blocks[copy.source])

    def drop(self) -> None:
        """Lets go of the memory, so that the allocator can be closed. No tensor of a layer may be used
        after."""
        self.layers.clear()


def _bytes(size_bytes: int, allocator: KVAllocator, device: torch.device) -> Tensor:
    if device.type == "cpu":
        # By way of numpy, which holds on to the buffer: torch.frombuffer would let it go under a tensor.
        return torch.from_numpy(np.frombuffer(allocator.allocate(size_bytes), dtype=np.uint8))
    try:
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{size_bytes} bytes of KV do not fit on {device}: lower kv_blocks") from error
