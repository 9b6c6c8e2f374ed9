"""Which blocks hold the KV of which tokens. One index a KV group, by the chained hash of the contracts.

A hash only proposes: a hit is taken only if the block's own tokens, its scope (salt, weights, adapter) and,
by the links to the blocks before it, all tokens before it are equal. Two prompts whose hashes collide never
share.
"""

from collections.abc import Iterable, Iterator, Sequence

from ridgeline_contracts.blockhash import HashScope
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId, GroupId

from ridgeline_engine.cached_block import TOKEN_BYTES, CachedBlock, same_chain
from ridgeline_engine.kv_events import KVStored


class PrefixCache:
    """The index of one KV group. It names blocks; who holds them is the pool's affair."""

    def __init__(
        self, group: GroupId, block_tokens: int, *, blocks: int, blocks_behind: int | None = None
    ) -> None:
        """`blocks` are the pool's. `blocks_behind`: how many right before its end a hit needs; None: all."""
        self.group = group
        self.block_tokens = block_tokens
        self._block_bytes = block_tokens * TOKEN_BYTES
        self.blocks_behind = blocks_behind
        self._by_hash: dict[BlockHash, CachedBlock] = {}
        self._by_block: list[CachedBlock | None] = [None] * blocks
        self._twins: dict[CachedBlock, list[BlockId]] = {}
        """Held blocks with the same KV as an indexed one, which can take its place."""
        self.orphans = 0
        """Indexed blocks whose parent is not: 0 in a group that sees the whole text means that nothing is
        stranded."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def __contains__(self, block: BlockId) -> bool:
        return self._by_block[block] is not None

    def entry(self, block: BlockId) -> CachedBlock | None:
        """What is cached in a block."""
        return self._by_block[block]

    def is_indexed(self, entry: CachedBlock) -> bool:
        """Whether a hit can lead to exactly this one."""
        return self._by_block[entry.block] is entry

    def find(self, scope: HashScope, packed: bytes, hashes: Sequence[BlockHash]) -> list[CachedBlock]:
        """The longest cached prefix of the `packed` tokens, at most as long as `hashes`, oldest block first."""
        found: list[CachedBlock] = []
        parent: CachedBlock | None = None
        size, start, get = self._block_bytes, 0, self._by_hash.get
        for block_hash in hashes:
            entry = get(block_hash)
            if entry is None or entry.tokens != packed[start : start + size]:
                break
            if entry.parent is not parent and not same_chain(entry.parent, parent):
                break
            # Equal parents are of one scope.
            if parent is None and entry.scope != scope:
                break
            found.append(entry)
            parent = entry
            start += size
        return found

    def find_scattered(
        self, scope: HashScope, packed: bytes, hashes: Sequence[BlockHash]
    ) -> list[CachedBlock | None]:
        """For each of `hashes` its block where it is cached, whatever lies before it: a window needs no more."""
        found: list[CachedBlock | None] = []
        for block_hash in hashes:
            entry = self._by_hash.get(block_hash)
            found.append(entry if entry is not None and self._ends(entry, scope, packed, found) else None)
        return found

    def store(self, entry: CachedBlock) -> CachedBlock | None:
        """Indexes a block that was computed. Returns the block to link the next one to.

        That is `entry`; or the one that already holds equal tokens, in which case `entry` is not indexed; or
        None where no hit could reach it: another prompt's block sits under the same hash or, in a group that
        sees the whole text, the block before it is gone. Then nothing behind it can be cached either.
        """
        if len(entry.tokens) != self._block_bytes:
            raise InvariantError(
                f"a block of {len(entry.tokens) // TOKEN_BYTES} tokens is not whole: {self.block_tokens}"
            )
        present = self._by_hash.get(entry.block_hash)
        if present is not None:
            same = present.tokens == entry.tokens and present.scope == entry.scope
            return present if same and same_chain(present.parent, entry.parent) else None
        if self._by_block[entry.block] is not None:
            raise InvariantError(f"block {entry.block} of group {self.group} is cached under another hash")
        orphan = entry.parent is not None and not self.is_indexed(entry.parent)
        if orphan and self.blocks_behind is None:
            return None
        if entry.parent is not None:
            entry.parent.children += 1
        self.orphans += orphan
        self._by_hash[entry.block_hash] = entry
        self._by_block[entry.block] = entry
        return entry

    def entries(self, blocks: Iterable[BlockId]) -> list[CachedBlock]:
        """Of the blocks that are indexed, in the order given."""
        return [entry for block in blocks if (entry := self._by_block[block]) is not None]

    def forget(self, gone: Sequence[CachedBlock]) -> None:
        """Takes blocks out of the index, each once and all of them indexed."""
        for entry in gone:
            self._twins.pop(entry, None)
            del self._by_hash[entry.block_hash]
            self._by_block[entry.block] = None
            self.orphans += entry.children
            if entry.parent is not None:
                entry.parent.children -= 1
                self.orphans -= not self.is_indexed(entry.parent)

    def remember(self, gone: Sequence[CachedBlock]) -> None:
        """Undoes a `forget` of blocks without twins."""
        for entry in reversed(gone):
            if entry.parent is not None:
                self.orphans += not self.is_indexed(entry.parent)
                entry.parent.children += 1
            self.orphans -= entry.children
            self._by_hash[entry.block_hash] = entry
            self._by_block[entry.block] = entry

    def add_twin(self, entry: CachedBlock, block: BlockId) -> None:
        """`block` holds the same KV as `entry` and is held by somebody."""
        self._twins.setdefault(entry, []).append(block)

    def remove_twin(self, entry: CachedBlock, block: BlockId) -> None:
        """`block` is about to be let go. Nothing happens where it has taken the place of `entry`, or `entry` is
        gone."""
        twins = self._twins.get(entry, [])
        if block in twins:
            twins.remove(block)
            if not twins:
                del self._twins[entry]

    def has_twin(self, entry: CachedBlock) -> bool:
        return entry in self._twins

    def twin_blocks(self) -> Iterator[BlockId]:
        return (block for twins in self._twins.values() for block in twins)

    def move_to_twin(self, entry: CachedBlock) -> BlockId:
        """From now on `entry` is in another block, which is returned; ask `has_twin` before."""
        block = self._twins[entry][-1]
        self.remove_twin(entry, block)
        self._by_block[entry.block] = None
        entry.block = block
        self._by_block[block] = entry
        return block

    def all_entries(self) -> Iterator[CachedBlock]:
        return iter(self._by_hash.values())

    def under(self, block_hash: BlockHash) -> CachedBlock | None:
        """What is indexed by a hash: of whose text is not asked."""
        return self._by_hash.get(block_hash)

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
        """Raises InvariantError unless the indexes by hash and by block, and the counts of links, agree."""
        entries = list(self._by_hash.values())
        if {entry.block: entry for entry in entries} != {
            block: entry for block, entry in enumerate(self._by_block) if entry is not None
        }:
            raise InvariantError(f"group {self.group}: the indexes by hash and by block differ")
        children: dict[CachedBlock, int] = {}
        for entry in entries:
            if entry.parent is not None:
                children[entry.parent] = children.get(entry.parent, 0) + 1
        if any(entry.children != children.get(entry, 0) for entry in entries):
            raise InvariantError(f"group {self.group}: a block counts other links than lead to it")
        orphans = sum(entry.parent is not None and not self.is_indexed(entry.parent) for entry in entries)
        if orphans != self.orphans:
            raise InvariantError(
                f"group {self.group}: {orphans} blocks lack their parent, not {self.orphans}"
            )

    def _ends(
        self, entry: CachedBlock, scope: HashScope, packed: bytes, found: Sequence[CachedBlock | None]
    ) -> bool:
        """Whether `entry` ends the first len(found) + 1 blocks of the tokens, whose blocks before are `found`."""
        size, walked = self._block_bytes, entry
        for index in range(len(found), -1, -1):
            if walked.tokens != packed[index * size : (index + 1) * size]:
                return False
            if index == 0 or walked.parent is None:
                return index == 0 and walked.parent is None and walked.scope == scope
            walked = walked.parent
            if walked is found[index - 1]:
                return True
        raise AssertionError("index 0 was passed")
