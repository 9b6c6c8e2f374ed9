"""A sequence's blocks in one KV group, and which of them its attention still needs."""

from dataclasses import dataclass, field

from ridgeline_contracts.kv import BlockId, KVGroup

from ridgeline_engine.cached_block import CachedBlock


@dataclass(slots=True)
class GroupTable:
    """`blocks` are those held; before them are `dropped_blocks` that left the window, or were never there."""

    blocks: list[BlockId] = field(default_factory=list)
    dropped_blocks: int = 0
    stored_blocks: int = 0
    """Blocks from the start of the text that were offered to the prefix cache."""
    last_stored: CachedBlock | None = None
    """What the next block is linked to."""
    storable: bool = True
    """False where no hit could reach what follows: after a hash collision, or when the links before are lost."""
    twins: list[tuple[CachedBlock, BlockId]] = field(default_factory=list)
    """Cached blocks of others with the tokens of one in `blocks`, each with that one: it takes over when the
    other is evicted, so that what this table stored behind it can still be reached."""
    era: int = 0
    """Of the cache when the table was built: once the cache was cleared, nothing older is stored."""

    @property
    def end_block(self) -> int:
        """Blocks that the text so far has room in, dropped ones included."""
        return self.dropped_blocks + len(self.blocks)

    def block(self, index: int) -> BlockId:
        """The block of positions index x block_tokens and up; it must be there."""
        assert index >= self.dropped_blocks
        return self.blocks[index - self.dropped_blocks]

    def linked_after(self, blocks: int) -> CachedBlock | None:
        """The cached block that ends the first `blocks` blocks; None where it is not known."""
        if not self.storable or blocks > self.stored_blocks or self.last_stored is None:
            return None
        entry: CachedBlock | None = self.last_stored
        for _ in range(self.stored_blocks - blocks):
            entry = None if entry is None else entry.parent
        return entry


def first_seen_block(group: KVGroup, tokens: int) -> int:
    """The first block that the query at position `tokens`, or a later one, can see.

    A query at p sees keys from p - window + 1 to p.
    """
    if group.window_tokens is None:
        return 0
    return max(0, tokens - group.window_tokens + 1) // group.block_tokens


def blocks_behind(group: KVGroup) -> int | None:
    """Blocks right before a hit's end that the group needs, if so many come before it; None: all of them.

    The next query sees window - 1 keys before itself.
    """
    if group.window_tokens is None:
        return None
    return -(-(group.window_tokens - 1) // group.block_tokens)


def blocks_at_once(group: KVGroup) -> int | None:
    """Blocks that one query's keys, its own included, can be spread over; None: it sees the whole text."""
    if group.window_tokens is None:
        return None
    return (group.window_tokens - 2) // group.block_tokens + 2


def blocks_ahead(group: KVGroup, *, computed: int, known: int) -> int:
    """Where the table ends that an admission builds: at all known tokens or, in a window group, as many blocks on
    as one query sees, which any pool that is large enough holds. Chunks longer than that grow the table."""
    end, at_once = group.blocks_for(known), blocks_at_once(group)
    return end if at_once is None else min(end, first_seen_block(group, computed) + at_once)
