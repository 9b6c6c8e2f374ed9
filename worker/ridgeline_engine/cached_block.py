"""A block whose KV is cached, and the texts that such blocks stand for."""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline_contracts.blockhash import HashScope, root_hash
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId

TOKEN_BYTES: Final = 4


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32: a twelfth of the memory of a list of them, and compared at once."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


@dataclass(slots=True, eq=False)
class CachedBlock:
    """A whole block whose KV was computed. Its identity, not its hash, is what later blocks link to."""

    block_hash: BlockHash
    block: BlockId
    tokens: bytes
    """Packed by `pack_tokens`."""
    scope: HashScope
    parent: "CachedBlock | None"
    children: int = 0
    """Blocks of the index that are linked to this one."""

    @property
    def parent_hash(self) -> BlockHash:
        return root_hash(self.scope) if self.parent is None else self.parent.block_hash


def same_chain(one: CachedBlock | None, other: CachedBlock | None) -> bool:
    """Whether two blocks end equal token sequences. One step in all cases but after a head was evicted and
    stored anew."""
    while one is not other:
        if one is None or other is None or one.tokens != other.tokens or one.scope != other.scope:
            return False
        one, other = one.parent, other.parent
    return True
