"""Whether pool, prefix caches and tables agree. Slow: for tests and idle moments."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId, KVGroup

from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import TOKEN_BYTES
from ridgeline_engine.kv_tables import first_seen_block
from ridgeline_engine.prefix_cache import PrefixCache
from ridgeline_engine.prefix_reach import stranded
from ridgeline_engine.sequence import Sequence as EngineSequence


def held_tokens(groups: Sequence[KVGroup], sequence: EngineSequence) -> int:
    """Positions that a sequence's tables have blocks for in every group, those that left a window included."""
    return min(sequence.tables[group.group].end_block * group.block_tokens for group in groups)


def check_kv(
    groups: Sequence[KVGroup],
    pool: BlockPool,
    caches: Mapping[GroupId, PrefixCache],
    sequences: Sequence[EngineSequence],
) -> None:
    """Raises InvariantError naming the first thing that is wrong. `sequences` are all that hold blocks."""
    pool.check()
    for sequence in sequences:
        _check_tables(groups, sequence)
    for group in groups:
        cache = caches[group.group]
        cache.check()
        for sequence in sequences:
            _check_contents(group, cache, sequence)
        _check_holders(group.group, pool, cache, sequences)
        if group.window_tokens is None and stranded(cache):
            raise InvariantError(f"group {group.group}: blocks are cached that no hit can reach")


def _check_tables(groups: Sequence[KVGroup], sequence: EngineSequence) -> None:
    if sequence.capacity_tokens != held_tokens(groups, sequence):
        raise InvariantError("a sequence's capacity differs from its tables")
    for group in groups:
        table = sequence.tables[group.group]
        seen = first_seen_block(group, sequence.computed_tokens)
        if table.dropped_blocks > seen:
            raise InvariantError(
                f"group {group.group}: {table.dropped_blocks} blocks were dropped, but block {seen} is still seen"
            )
        if sequence.computed_tokens < sequence.kv_border_tokens and table.dropped_blocks < seen:
            raise InvariantError(
                f"group {group.group}: {seen} blocks have left the window, {table.dropped_blocks} were dropped"
            )


def _check_contents(group: KVGroup, cache: PrefixCache, sequence: EngineSequence) -> None:
    """What is cached of a table's blocks is this sequence's own text, in its own scope."""
    table, size = sequence.tables[group.group], group.block_tokens * TOKEN_BYTES
    packed = sequence.packed_tokens(len(sequence.tokens))
    for index, block in enumerate(table.blocks, start=table.dropped_blocks):
        entry = cache.entry(block)
        if entry is None:
            continue
        if entry.scope != sequence.scope or entry.tokens != packed[index * size : (index + 1) * size]:
            raise InvariantError(
                f"group {group.group}: block {block} is cached for another text than its holder's"
            )


def _check_holders(
    group: GroupId, pool: BlockPool, cache: PrefixCache, sequences: Sequence[EngineSequence]
) -> None:
    holders = Counter(block for each in sequences for block in each.tables[group].blocks)
    for block in map(BlockId, range(pool.counts(group).total)):
        if pool.holders(group, block) != holders[block]:
            raise InvariantError(f"block {block} of group {group}: holders and tables differ")
        if pool.is_hittable(group, block) != (block in cache):
            raise InvariantError(f"block {block} of group {group}: pool and prefix cache differ")
    for block in cache.twin_blocks():
        if not holders[block] or block in cache:
            raise InvariantError(f"block {block} of group {group} cannot take another's place")
