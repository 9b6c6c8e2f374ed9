"""The KV of sequences: block pool, prefix caches and their events as one thing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from ridgeline_contracts.errors import InvariantError, Unsupported
from ridgeline_contracts.kv import BlockId, GroupId, KVGroup, KVKind

from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.kv_events import KVCleared, KVEventLog, KVStored
from ridgeline_engine.prefix_cache import CachedBlock, PrefixCache
from ridgeline_engine.seam import BlockAppend, BlockCopy, CopyKind, LaunchId, SlotId
from ridgeline_engine.sequence import GroupTable
from ridgeline_engine.sequence import Sequence as EngineSequence


@dataclass(frozen=True, slots=True)
class KVStart:
    """KV that is there before a sequence runs: whole blocks to share, and in a fork one block a group to
    copy."""

    tokens: int
    shared: Mapping[GroupId, tuple[BlockId, ...]]
    last_stored: Mapping[GroupId, CachedBlock]
    copied: Mapping[GroupId, BlockId]


class KVManager:
    """Block tables of all sequences. Not thread-safe."""

    def __init__(
        self,
        groups: Sequence[KVGroup],
        blocks: Mapping[GroupId, int],
        *,
        prefix_cache: bool,
        event_buffer: int,
    ) -> None:
        for group in groups:
            if group.kind is KVKind.RECURRENT:
                raise Unsupported(
                    f"KV group {group.group} is recurrent: this engine pages keys and values only"
                )
        self.groups = tuple(groups)
        self.pool = BlockPool({group.group: blocks[group.group] for group in groups}, on_evict=self._evict)
        self.events = KVEventLog(event_buffer, snapshot=self._stored)
        self._caches = {group.group: PrefixCache(group.group, group.block_tokens) for group in groups}
        self._caching = prefix_cache
        self._hit_granule_tokens = lcm(*(group.block_tokens for group in groups))

    @property
    def capacity_tokens(self) -> int:
        """Tokens of one sequence that has the whole pool to itself."""
        return min(self.pool.counts(group.group).total * group.block_tokens for group in self.groups)

    def find(self, sequence: EngineSequence) -> KVStart:
        """The longest prefix that is cached in every group, without the last token: one must be computed."""
        limit = len(sequence.tokens) - 1
        found: dict[GroupId, list[CachedBlock]] = {}
        tokens = limit if self._caching else 0
        for group in self.groups if self._caching else ():
            hashes = sequence.block_hashes(group.block_tokens, tokens=tokens)
            found[group.group] = self._caches[group.group].find(sequence.scope, sequence.tokens, hashes)
            tokens = min(tokens, len(found[group.group]) * group.block_tokens)
        tokens -= tokens % self._hit_granule_tokens
        hit = {
            group.group: found[group.group][: tokens // group.block_tokens] for group in self.groups if tokens
        }
        return KVStart(
            tokens,
            shared={group: tuple(entry.block for entry in entries) for group, entries in hit.items()},
            last_stored={group: entries[-1] for group, entries in hit.items()},
            copied={},
        )

    def fork(self, sequence: EngineSequence, *, parent: EngineSequence) -> KVStart:
        """The prompt of a sibling that has computed it: whole blocks shared, the block of the last token
        copied.

        That last prompt token is run again by the fork, into its own copy, since each choice samples from it.
        """
        tokens = sequence.prompt_tokens - 1
        shared, copied = {}, {}
        for group in self.groups:
            blocks = parent.tables[group.group].blocks
            whole, rest = divmod(tokens, group.block_tokens)
            shared[group.group] = tuple(blocks[:whole])
            if rest:
                copied[group.group] = blocks[whole]
        return KVStart(tokens, shared, {}, copied)

    def can_admit(self, sequence: EngineSequence, start: KVStart, *, reserve_blocks: int) -> bool:
        """Whether all known tokens fit, leaving `reserve_blocks` of each group to sequences that run."""
        need = {group: count + reserve_blocks for group, count in self._missing(sequence, start).items()}
        return self.pool.can_allocate(need, sharing=start.shared)

    def admit(
        self, sequence: EngineSequence, start: KVStart, slot: SlotId
    ) -> tuple[list[BlockAppend], list[BlockCopy]]:
        """Builds the tables: what is shared, then new blocks for all known tokens. Ask `can_admit` before."""
        missing = self._missing(sequence, start)
        for group, blocks in start.shared.items():
            self.pool.share(group, blocks)
        new = self.pool.allocate(missing)
        appends, copies = [], []
        for group, blocks in new.items():
            shared = start.shared.get(group, ())
            last = start.last_stored.get(group)
            stored = 0 if last is None else len(shared)
            sequence.tables[group] = GroupTable([*shared, *blocks], stored, last)
            appends.append(BlockAppend(slot, group, (*shared, *blocks)))
            if group in start.copied:
                copies.append(BlockCopy(CopyKind.ON_DEVICE, group, start.copied[group], blocks[0]))
        sequence.computed_tokens = sequence.planned_tokens = start.tokens
        sequence.capacity_tokens = self._capacity(sequence)
        return appends, copies

    def growth(self, sequence: EngineSequence, tokens: int) -> dict[GroupId, int]:
        """Blocks by group that the tables lack to hold `tokens` tokens; empty where they do."""
        lacking = {
            group.group: group.blocks_for(tokens) - len(sequence.tables[group.group].blocks)
            for group in self.groups
        }
        return {group: count for group, count in lacking.items() if count > 0}

    def grow(self, sequence: EngineSequence, need: Mapping[GroupId, int], slot: SlotId) -> list[BlockAppend]:
        """Appends blocks. Ask `pool.can_allocate(need)` before."""
        appends = []
        for group, blocks in self.pool.allocate(need).items():
            sequence.tables[group].blocks += blocks
            appends.append(BlockAppend(slot, group, blocks))
        sequence.capacity_tokens = self._capacity(sequence)
        return appends

    def store(self, sequence: EngineSequence) -> None:
        """Offers the whole blocks that were computed since the last call to the prefix cache."""
        if not self._caching:
            return
        for group in self.groups:
            table = sequence.tables[group.group]
            if table.storable and sequence.computed_tokens // group.block_tokens > table.stored_blocks:
                self._store_group(sequence, group, table)

    def _store_group(self, sequence: EngineSequence, group: KVGroup, table: GroupTable) -> None:
        cache, step = self._caches[group.group], group.block_tokens
        hashes = sequence.block_hashes(step, tokens=sequence.computed_tokens)
        new: list[CachedBlock] = []
        while table.stored_blocks < len(hashes):
            index = table.stored_blocks
            entry = CachedBlock(
                hashes[index],
                table.blocks[index],
                tuple(sequence.tokens[index * step : (index + 1) * step]),
                sequence.scope,
                table.last_stored,
            )
            linked = cache.store(entry)
            if linked is None:
                table.storable = False
                break
            if linked is entry:
                self.pool.set_hittable(group.group, entry.block, True)
                new.append(entry)
            table.last_stored = linked
            table.stored_blocks += 1
        self._log_stored(group.group, new)

    def _log_stored(self, group: GroupId, new: Sequence[CachedBlock]) -> None:
        start = 0
        for index in range(1, len(new) + 1):
            if index == len(new) or new[index].parent is not new[index - 1]:
                hashes = tuple(entry.block_hash for entry in new[start:index])
                self.events.add(KVStored(new[start].parent_hash, hashes, group))
                start = index

    def release(self, sequence: EngineSequence, *, fence: LaunchId | None) -> None:
        """Gives the sequence's blocks back. What was stored stays hittable until the room is needed."""
        for group, table in sequence.tables.items():
            self.pool.release(group, table.blocks, fence=fence)
        sequence.tables.clear()
        sequence.computed_tokens = sequence.planned_tokens = sequence.capacity_tokens = 0

    def distrust(self, sequence: EngineSequence) -> None:
        """No one may hit a block that this sequence used: a fault showed that its KV may be wrong."""
        for group, table in sequence.tables.items():
            self._forget(group, table.blocks)

    def clear(self) -> None:
        """Empties the prefix cache: the weights changed, say."""
        for group, cache in self._caches.items():
            blocks = cache.blocks()
            cache.forget(blocks)
            for block in blocks:
                self.pool.set_hittable(group, block, False)
        self.events.add(KVCleared())

    def check(self, sequences: Iterable[EngineSequence]) -> None:
        """Raises InvariantError unless pool, caches and the tables of all `sequences` agree."""
        self.pool.check()
        holders: dict[tuple[GroupId, BlockId], int] = {}
        for sequence in sequences:
            if sequence.capacity_tokens != self._capacity(sequence):
                raise InvariantError("a sequence's capacity differs from its tables")
            for group, table in sequence.tables.items():
                for block in table.blocks:
                    holders[group, block] = holders.get((group, block), 0) + 1
        for group_id in self._caches:
            total = self.pool.counts(group_id).total
            for block in map(BlockId, range(total)):
                if self.pool.holders(group_id, block) != holders.get((group_id, block), 0):
                    raise InvariantError(f"block {block} of group {group_id}: holders and tables differ")
                if self.pool.is_hittable(group_id, block) != (block in self._caches[group_id]):
                    raise InvariantError(f"block {block} of group {group_id}: pool and prefix cache differ")
            self._caches[group_id].check()

    def _capacity(self, sequence: EngineSequence) -> int:
        return min(len(sequence.tables[group.group].blocks) * group.block_tokens for group in self.groups)

    def _missing(self, sequence: EngineSequence, start: KVStart) -> dict[GroupId, int]:
        return {
            group.group: group.blocks_for(len(sequence.tokens)) - len(start.shared.get(group.group, ()))
            for group in self.groups
        }

    def _evict(self, group: GroupId, blocks: Sequence[BlockId]) -> None:
        # The pool has already unmarked them: it is about to hand them out.
        event = self._caches[group].forget(blocks)
        if event is not None:
            self.events.add(event)

    def _forget(self, group: GroupId, blocks: Sequence[BlockId]) -> None:
        self._evict(group, blocks)
        for block in blocks:
            self.pool.set_hittable(group, block, False)

    def _stored(self) -> tuple[KVStored, ...]:
        return tuple(run for cache in self._caches.values() for run in cache.stored())
