"""The prefix caches of all KV groups, kept in step with the pool's marks and told of in events."""

from collections.abc import Mapping, Sequence
from functools import partial

from ridgeline_contracts.kv import BlockId, GroupId, KVGroup

from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import TOKEN_BYTES, CachedBlock
from ridgeline_engine.kv_events import KVCleared, KVEventLog, KVEvicted, KVStored
from ridgeline_engine.kv_tables import GroupTable, blocks_behind
from ridgeline_engine.prefix_cache import PrefixCache
from ridgeline_engine.prefix_reach import stranded, useless_without, with_descendants
from ridgeline_engine.seam import LaunchId
from ridgeline_engine.sequence import Sequence as EngineSequence


class KVIndex:
    """What may be hit. A block that it names is marked hittable in the pool, and no other one is."""

    def __init__(
        self, groups: Sequence[KVGroup], blocks: Mapping[GroupId, int], pool: BlockPool, *, event_buffer: int
    ) -> None:
        self._groups, self._pool = groups, pool
        self.caches = {
            group.group: PrefixCache(
                group.group,
                group.block_tokens,
                blocks=blocks[group.group],
                blocks_behind=blocks_behind(group),
            )
            for group in groups
        }
        self.events = KVEventLog(event_buffer, snapshot=self._stored)
        self.era = 0
        """How often the index was cleared."""

    def store(self, sequence: EngineSequence, group: KVGroup, table: GroupTable) -> None:
        """Offers the whole blocks of a table that were computed since the last call."""
        cache, step = self.caches[group.group], group.block_tokens
        hashes = sequence.block_hashes(step, tokens=sequence.computed_tokens)
        packed, size = sequence.packed_tokens(sequence.computed_tokens), step * TOKEN_BYTES
        table.storable = table.era == self.era
        new: list[CachedBlock] = []
        while table.storable and table.stored_blocks < len(hashes):
            index = table.stored_blocks
            block, tokens = table.block(index), packed[index * size : (index + 1) * size]
            entry = CachedBlock(hashes[index], block, tokens, sequence.scope, table.last_stored)
            linked = cache.store(entry)
            if linked is None:
                table.storable = False
                break
            if linked is entry:
                self._pool.set_hittable(group.group, block, True)
                new.append(entry)
            elif linked.block != block and group.window_tokens is None:
                cache.add_twin(linked, block)
                table.twins.append((linked, block))
            table.last_stored = linked
            table.stored_blocks += 1
        self._log_stored(group.group, new)

    def let_go(self, group: GroupId, table: GroupTable, *, fence: LaunchId | None) -> None:
        """The blocks of `table` were just released with `fence`."""
        cache = self.caches[group]
        for entry, block in table.twins:
            cache.remove_twin(entry, block)
        # What others hold for this text must outlast what stands behind it, and so must all that stands before:
        # from the last of the others' blocks to the head, each counts as freed after the one behind it.
        walked = table.twins[-1][0] if table.twins else None
        while walked is not None:
            if cache.is_indexed(walked):
                self._pool.touch(group, walked.block, fence=fence)
            walked = walked.parent

    def evict(self, blocks: Mapping[GroupId, Sequence[BlockId]]) -> None:
        """The pool is about to hand these out, and has unmarked them. Changes nothing where it raises.

        Where another table holds the same KV, that block takes the place. What is of no use to any hit without
        the blocks that go is forgotten too.
        """
        done: list[tuple[GroupId, list[CachedBlock], list[CachedBlock]]] = []
        moved: list[tuple[GroupId, CachedBlock]] = []
        try:
            for group, mine in blocks.items():
                cache, entries = self.caches[group], self.caches[group].entries(mine)
                moved += [(group, entry) for entry in entries if cache.has_twin(entry)]
                gone = [entry for entry in entries if not cache.has_twin(entry)]
                cache.forget(gone)
                done.append((group, gone, []))
                useless = useless_without(cache, gone, holders=partial(self._pool.holders, group))
                cache.forget(useless)
                done[-1] = (group, gone, useless)
        except BaseException:
            for group, gone, useless in reversed(done):
                self.caches[group].remember(useless)
                self.caches[group].remember(gone)
            raise
        for group, entry in moved:
            self._pool.set_hittable(group, self.caches[group].move_to_twin(entry), True)
        for group, gone, useless in done:
            for entry in useless:
                self._pool.set_hittable(group, entry.block, False)
            self._log_evicted(group, (*gone, *useless))

    def distrust(self, tables: Mapping[GroupId, GroupTable]) -> None:
        """Forgets the blocks of a sequence and all that was computed from them."""
        for group, table in tables.items():
            cache = self.caches[group]
            for entry, block in table.twins:
                cache.remove_twin(entry, block)
            gone = with_descendants(cache, table.blocks)
            cache.forget(gone)
            for entry in gone:
                self._pool.set_hittable(group, entry.block, False)
            self._log_evicted(group, gone)

    def clear(self) -> None:
        """Forgets everything. Tables of an earlier era store nothing any more."""
        self.era += 1
        for group, cache in self.caches.items():
            entries = list(cache.all_entries())
            cache.forget(entries)
            for entry in entries:
                self._pool.set_hittable(group, entry.block, False)
        self.events.add(KVCleared())

    def stranded_bytes(self) -> int:
        return sum(
            len(stranded(self.caches[group.group])) * group.block_bytes
            for group in self._groups
            if group.window_tokens is None
        )

    def _log_stored(self, group: GroupId, new: Sequence[CachedBlock]) -> None:
        start = 0
        for index in range(1, len(new) + 1):
            if index == len(new) or new[index].parent is not new[index - 1]:
                hashes = tuple(entry.block_hash for entry in new[start:index])
                self.events.add(KVStored(new[start].parent_hash, hashes, group))
                start = index

    def _log_evicted(self, group: GroupId, gone: Sequence[CachedBlock]) -> None:
        if gone:
            self.events.add(KVEvicted(tuple(entry.block_hash for entry in gone), group))

    def _stored(self) -> tuple[KVStored, ...]:
        return tuple(run for cache in self.caches.values() for run in cache.stored())
