"""KV groups: layers whose KV lives and dies together. A model has one (all full attention) or several."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

GroupId = NewType("GroupId", int)
BlockId = NewType("BlockId", int)


class KVKind(StrEnum):
    FULL = "full"
    WINDOW = "window"
    RECURRENT = "recurrent"
    LATENT = "latent"


class KVDtype(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def bytes_per_element(self) -> int:
        return {"fp32": 4, "bf16": 2, "fp8": 1}[self.value]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One group. A block of one layer is laid out [heads, 2 (key, value), block_tokens, head_dim].

    Heads are outermost inside a block, so that a tensor-parallel split is one contiguous piece. A latent group has
    one head and no separate value (`parts` is 1). `scales` counts the fp32 scale factors a head stores in a block.
    """

    group: GroupId
    layers: tuple[int, ...]
    kind: KVKind
    block_tokens: int
    heads: int
    head_dim: int
    dtype: KVDtype
    scales: int = 0
    window_tokens: int | None = None
    """For a window group: keys older than this many tokens are never read again."""

    @property
    def parts(self) -> int:
        return 1 if self.kind is KVKind.LATENT else 2

    @property
    def layer_block_bytes(self) -> int:
        """Bytes of one block in one layer."""
        elements = self.heads * self.parts * self.block_tokens * self.head_dim
        return elements * self.dtype.bytes_per_element + self.heads * self.scales * 4

    @property
    def block_bytes(self) -> int:
        """Bytes that one block id stands for: the same id is used in each of the group's layers."""
        return self.layer_block_bytes * len(self.layers)

    @property
    def token_bytes(self) -> float:
        return self.block_bytes / self.block_tokens

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Element strides of (head, part, token, dim) inside a layer's block."""
        return (
            self.parts * self.block_tokens * self.head_dim,
            self.block_tokens * self.head_dim,
            self.head_dim,
            1,
        )

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_tokens)
