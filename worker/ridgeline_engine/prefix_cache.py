"""Which blocks hold the KV of which tokens. One index a KV group, by the chained hash of the contracts.

A hash only proposes: a hit is taken only if the block's own tokens, its scope (salt, weights, adapter) and,
by the links to the blocks before it, all tokens before it are equal. Two prompts whose hashes collide never
share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ridgeline_contracts.blockhash import HashScope, root_hash
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId, GroupId

from ridgeline_engine.kv_events import KVEvicted, KVStored


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """A whole block whose KV was computed. Its identity, not its hash, is what later blocks link to."""

    block_hash: BlockHash
    block: BlockId
    tokens: tuple[int, ...]
    scope: HashScope
    parent: "CachedBlock | None"

    @property
    def parent_hash(self) -> BlockHash:
        return root_hash(self.scope) if self.parent is None else self.parent.block_hash


def _same_chain(one: CachedBlock | None, other: CachedBlock | None) -> bool:
    """Whether two blocks end equal token sequences. One step in all cases but after a head was evicted and
    stored anew."""
    while one is not other:
        if one is None or other is None or one.tokens != other.tokens or one.scope != other.scope:
            return False
        one, other = one.parent, other.parent
    return True


class PrefixCache:
    """The index of one KV group. It names blocks; who holds them is the pool's affair."""

    def __init__(self, group: GroupId, block_tokens: int) -> None:
        self.group = group
        self.block_tokens = block_tokens
        self._by_hash: dict[BlockHash, CachedBlock] = {}
        self._by_block: dict[BlockId, CachedBlock] = {}

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, block: BlockId) -> bool:
        return block in self._by_block

    def find(self, scope: HashScope, tokens: Sequence[int], hashes: Sequence[BlockHash]) -> list[CachedBlock]:
        """The longest cached prefix of `tokens`, at most as long as `hashes`, oldest block first."""
        found: list[CachedBlock] = []
        parent: CachedBlock | None = None
        for index, block_hash in enumerate(hashes):
            entry = self._by_hash.get(block_hash)
            start = index * self.block_tokens
            if entry is None or not self._is_block(
                entry, scope, tuple(tokens[start : start + self.block_tokens]), parent
            ):
                break
            found.append(entry)
            parent = entry
        return found

    def store(self, entry: CachedBlock) -> CachedBlock | None:
        """Indexes a block that was computed. Returns the block to link the next one to.

        That is `entry`; or the one that already holds equal tokens, in which case `entry` is not indexed; or
        None where another prompt's block sits under the same hash: then nothing behind it can be cached
        either.
        """
        if len(entry.tokens) != self.block_tokens:
            raise InvariantError(f"a block of {len(entry.tokens)} tokens is not whole: {self.block_tokens}")
        present = self._by_hash.get(entry.block_hash)
        if present is not None:
            same = self._is_block(present, entry.scope, entry.tokens, entry.parent)
            return present if same else None
        if entry.block in self._by_block:
            raise InvariantError(f"block {entry.block} of group {self.group} is cached under another hash")
        self._by_hash[entry.block_hash] = entry
        self._by_block[entry.block] = entry
        return entry

    def forget(self, blocks: Iterable[BlockId]) -> KVEvicted | None:
        """Takes blocks out of the index; those that are not in it are passed over."""
        gone = [entry for block in blocks if (entry := self._by_block.pop(block, None)) is not None]
        for entry in gone:
            del self._by_hash[entry.block_hash]
        return KVEvicted(tuple(entry.block_hash for entry in gone), self.group) if gone else None

    def blocks(self) -> tuple[BlockId, ...]:
        return tuple(self._by_block)

    def stored(self) -> list[KVStored]:
        """All that is indexed, neighbours joined into runs."""
        runs: list[tuple[BlockHash, list[BlockHash]]] = []
        for entry in self._by_hash.values():
            if runs and runs[-1][1][-1] == entry.parent_hash:
                runs[-1][1].append(entry.block_hash)
            else:
                runs.append((entry.parent_hash, [entry.block_hash]))
        return [KVStored(parent, tuple(hashes), self.group) for parent, hashes in runs]

    def check(self) -> None:
        """Raises InvariantError unless the indexes by hash and by block agree."""
        if {entry.block: entry for entry in self._by_hash.values()} != self._by_block:
            raise InvariantError(f"group {self.group}: the indexes by hash and by block differ")

    def _is_block(
        self, entry: CachedBlock, scope: HashScope, tokens: tuple[int, ...], parent: CachedBlock | None
    ) -> bool:
        return entry.tokens == tokens and entry.scope == scope and _same_chain(entry.parent, parent)
