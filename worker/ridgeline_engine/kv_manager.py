"""The KV of sequences: block pool, prefix caches, host pool and their events as one thing.

A full group holds a block for every token of a sequence. A window group holds what its queries can still see:
blocks whose last token is older than the window for every position still to be computed are given back while
the sequence runs, and tables grow by chunks.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from ridgeline_contracts.errors import Unsupported
from ridgeline_contracts.kv import GroupId, KVGroup, KVKind

from ridgeline_engine.block_group import BlockCounts
from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import CachedBlock
from ridgeline_engine.host_pool import HostPool
from ridgeline_engine.kv_check import check_kv, held_tokens
from ridgeline_engine.kv_events import KVEventLog
from ridgeline_engine.kv_index import KVIndex
from ridgeline_engine.kv_search import KVStart, PrefixSearch
from ridgeline_engine.kv_tables import GroupTable, blocks_ahead, blocks_at_once, first_seen_block
from ridgeline_engine.pending_prefix import PendingPrefixes
from ridgeline_engine.seam import ABSENT_BLOCK, BlockAppend, BlockCopy, CopyKind, LaunchId, SlotId
from ridgeline_engine.sequence import Sequence as EngineSequence


class KVManager:
    """Block tables of all sequences. Not thread-safe.

    Copies (copy-on-write of forks, swaps) queue here in the order decided, until a plan takes them along.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        blocks: Mapping[GroupId, int],
        *,
        prefix_cache: bool,
        event_buffer: int,
        host_blocks: Mapping[GroupId, int] | None = None,
    ) -> None:
        for group in groups:
            if group.kind is KVKind.RECURRENT:
                raise Unsupported(
                    f"KV group {group.group} is recurrent: this engine pages keys and values only"
                )
        self.groups = tuple(groups)
        self.pool = BlockPool(
            {group.group: blocks[group.group] for group in groups},
            on_evict=lambda evicted: self._index.evict(evicted),
        )
        self._index = KVIndex(self.groups, blocks, self.pool, event_buffer=event_buffer)
        self._caching = prefix_cache
        self._search = PrefixSearch(groups, self._index.caches)
        self._pending = PendingPrefixes()
        self._host = HostPool(groups, host_blocks or {})
        self._copies: list[BlockCopy] = []

    def longest_tokens(self, *, at_most: int) -> int:
        """Tokens of one sequence that has the whole pool to itself, but at most `at_most`."""
        for group in self.groups:
            total, enough = self.pool.counts(group.group).total, blocks_at_once(group)
            if enough is None or total < enough:
                at_most = min(at_most, total * group.block_tokens)
        return at_most

    def capacity_tokens(self, *, longest_tokens: int) -> int:
        """Tokens of all sequences together, none longer than `longest_tokens`: in a window group, of as many as
        have room for their windows."""
        return min(
            total * group.block_tokens
            if enough is None or total < enough
            else total // enough * longest_tokens
            for group in self.groups
            for total, enough in [(self.pool.counts(group.group).total, blocks_at_once(group))]
        )

    @property
    def events(self) -> KVEventLog:
        """What changed in the prefix caches."""
        return self._index.events

    def stranded_bytes(self) -> int:
        """KV that is kept and that no hit can reach, of groups that see the whole text: 0, by the order in which blocks
        are freed. In a window group less than a window of a text may be left over; it goes before anything else."""
        return self._index.stranded_bytes()

    def find(self, sequence: EngineSequence) -> KVStart:
        """The longest prefix that is cached in every group, without the last token: one must be computed."""
        return self._search.find(sequence) if self._caching else KVStart.nothing()

    def awaits(self, sequence: EngineSequence, start: KVStart) -> bool:
        """Whether a running sequence of an earlier rank is computing what comes right after `start`: once it is
        through, that is hit as well. No longer when it ends or is preempted."""
        if not self._caching:
            return False
        size = self.groups[0].block_tokens
        hashes = sequence.block_hashes(size, tokens=len(sequence.tokens) - 1)
        sequence.awaited_block = self._pending.last_awaited(sequence, hashes, found=start.tokens // size)
        return sequence.awaited_block is not None

    def still_awaits(self, sequence: EngineSequence) -> bool:
        """`awaits` for the last answer that was yes, without another look into the caches."""
        awaited = sequence.awaited_block
        return awaited is not None and self._pending.owner(awaited) is not None

    def fork(self, sequence: EngineSequence, *, parent: EngineSequence) -> KVStart:
        """The prompt of a sibling that has computed it: whole blocks shared, the block of the last token
        copied. What `find` gives where the sibling's window has moved on.

        That last prompt token is run again by the fork, into its own copy, since each choice samples from it.
        """
        tokens = sequence.prompt_tokens - 1
        shared, last, copied, present = {}, {}, {}, {}
        for group in self.groups:
            mine, table = group.group, parent.tables[group.group]
            whole, rest = divmod(tokens, group.block_tokens)
            first = first_seen_block(group, tokens)
            if first < table.dropped_blocks:
                return self.find(sequence)
            shared[mine], present[mine] = tuple(map(table.block, range(first, whole))), whole
            if rest:
                copied[mine] = table.block(whole)
            linked = table.linked_after(whole) if first else None
            if linked is not None:
                last[mine] = linked
        return KVStart(tokens, shared, last, copied, present)

    def can_admit(
        self,
        sequence: EngineSequence,
        start: KVStart | None,
        *,
        reserve_blocks: int,
        once_retired: bool = False,
    ) -> bool:
        """Whether all known tokens fit (in a window group: the first window of them), leaving `reserve_blocks`
        of each group to sequences that run. `start` None: of a sequence that comes back from the host.

        `once_retired` asks for the time when all open launches have completed.
        """
        start = self._resumption(sequence) if start is None else start
        need = {group: count + reserve_blocks for group, count in self._missing(sequence, start).items()}
        return self.pool.can_allocate(need, sharing=start.shared, once_retired=once_retired)

    def admit(self, sequence: EngineSequence, start: KVStart, slot: SlotId) -> list[BlockAppend]:
        """Builds the tables: what is shared, then new blocks. Ask `can_admit` before."""
        appends = self._build(sequence, start, slot)
        for group, source in start.copied.items():
            target = sequence.tables[group].block(start.present[group])
            self._copies.append(BlockCopy(CopyKind.ON_DEVICE, group, source, target))
        return appends

    def growth(self, sequence: EngineSequence, tokens: int) -> dict[GroupId, int]:
        """Blocks by group that the tables lack to hold `tokens` tokens; empty where they do."""
        lacking = {
            group.group: group.blocks_for(tokens) - sequence.tables[group.group].end_block
            for group in self.groups
        }
        return {group: count for group, count in lacking.items() if count > 0}

    def reach(self, sequence: EngineSequence, tokens: int) -> int:
        """How many tokens, at most `tokens`, the tables could hold with the blocks that are free now."""
        for group in self.groups:
            blocks = sequence.tables[group.group].end_block + self.pool.counts(group.group).free
            tokens = min(tokens, blocks * group.block_tokens)
        return tokens

    def grow(self, sequence: EngineSequence, need: Mapping[GroupId, int], slot: SlotId) -> list[BlockAppend]:
        """Appends blocks. Ask `pool.can_allocate(need)` before."""
        appends = []
        for group, blocks in self.pool.allocate(need).items():
            sequence.tables[group].blocks += blocks
            appends.append(BlockAppend(slot, group, blocks))
        sequence.capacity_tokens = held_tokens(self.groups, sequence)
        return appends

    def store(self, sequence: EngineSequence, *, fence: LaunchId | None) -> None:
        """After a commit: offers whole computed blocks to the prefix cache and gives back what left a window.

        Nothing to do but at the borders of blocks. `fence` is the newest open launch: by their windows no launch
        reads the dropped blocks, but a kernel may load what it then masks.
        """
        if sequence.computed_tokens < sequence.kv_border_tokens:
            return
        for group in self.groups:
            table = sequence.tables[group.group]
            if self._caching and table.storable:
                self._index.store(sequence, group, table)
            self._drop_unseen(sequence, group, table, fence)
        if self._caching:
            self._pending.advance(sequence, sequence.computed_tokens // self.groups[0].block_tokens)
        self._set_border(sequence)

    def release(self, sequence: EngineSequence, *, fence: LaunchId | None) -> None:
        """Gives the sequence's blocks back. What was stored stays hittable until the room is needed."""
        self._pending.end(sequence)
        for group, table in sequence.tables.items():
            self.pool.release(group, table.blocks, fence=fence)
            self._index.let_go(group, table, fence=fence)
        sequence.tables.clear()
        sequence.computed_tokens = sequence.planned_tokens = sequence.capacity_tokens = 0

    def distrust(self, sequence: EngineSequence) -> None:
        """No one may hit a block that this sequence used, or what was computed from it: a fault showed that its
        KV may be wrong."""
        self._index.distrust(sequence.tables)

    def clear(self) -> None:
        """Empties the prefix cache: the weights changed, say. What runs now is not stored any more."""
        self._index.clear()

    def retire(self, launch: LaunchId) -> None:
        """Launches up to and including `launch` have completed."""
        self.pool.retire(launch)
        self._host.retire(launch)

    def drain_copies(self, launch: LaunchId) -> tuple[BlockCopy, ...]:
        """Copies that `launch` takes along, in order."""
        copies, self._copies = tuple(self._copies), []
        self._host.launched(launch)
        return copies

    def host_counts(self, group: GroupId) -> BlockCounts:
        """Of the pool for swapped sequences; all 0 where the host has none."""
        return self._host.counts(group)

    def is_swapped(self, sequence: EngineSequence) -> bool:
        """Whether a waiting sequence's KV is on the host."""
        return sequence in self._host

    def can_swap_out(self, sequence: EngineSequence) -> bool:
        """Whether the host has room for what this running sequence has computed."""
        return sequence.computed_tokens > 0 and self._host.has_room(sequence)

    def swap_out(self, sequence: EngineSequence, *, fence: LaunchId | None) -> int:
        """Instead of `release`: copies what is computed to the host. Returns the blocks moved. Ask `can_swap_out`
        before.

        The device's blocks are free once `fence` has completed: the copies run before whatever overwrites them.
        """
        copies = self._host.put(sequence)
        self._copies += copies
        self.release(sequence, fence=fence)
        return len(copies)

    def swap_in(self, sequence: EngineSequence, slot: SlotId) -> list[BlockAppend]:
        """Instead of `admit`: what was computed is there again, shared where the cache still has it. Ask
        `can_admit` with None before."""
        swapped, start = self._host.swapped(sequence), self._resumption(sequence)
        appends = self._build(sequence, start, slot)
        for group, kept in swapped.tables.items():
            shared, table = len(start.shared.get(group, ())), sequence.tables[group]
            if kept.dropped_blocks:
                _link(table, kept.linked, kept.stored_blocks)
                table.era = kept.era
            self._copies += [
                BlockCopy(CopyKind.SWAP_IN, group, source, target)
                for source, target in zip(kept.blocks[shared:], table.blocks[shared:], strict=False)
            ]
        self._host.drop(sequence)
        return appends

    def drop_swapped(self, sequence: EngineSequence) -> None:
        """Frees what the host holds of a sequence that ends; nothing where it holds nothing."""
        self._host.drop(sequence)

    def check(self, sequences: Iterable[EngineSequence]) -> None:
        """Raises InvariantError unless pools, caches and the tables of all `sequences` agree."""
        check_kv(self.groups, self.pool, self._index.caches, list(sequences))
        self._host.check()

    def _build(self, sequence: EngineSequence, start: KVStart, slot: SlotId) -> list[BlockAppend]:
        new = self.pool.acquire(self._missing(sequence, start), sharing=start.shared)
        appends = []
        for group in self.groups:
            mine = group.group
            shared, present = start.shared.get(mine, ()), start.present.get(mine, 0)
            table = GroupTable(
                [*shared, *new[mine]], dropped_blocks=present - len(shared), era=self._index.era
            )
            _link(table, start.last_stored.get(mine), present)
            sequence.tables[mine] = table
            absent = (ABSENT_BLOCK,) * table.dropped_blocks
            appends.append(BlockAppend(slot, mine, (*absent, *table.blocks)))
        sequence.computed_tokens = sequence.planned_tokens = start.tokens
        sequence.capacity_tokens = held_tokens(self.groups, sequence)
        sequence.kv_border_tokens = 0.0
        if self._caching:
            size = self.groups[0].block_tokens
            hashes = sequence.block_hashes(size, tokens=len(sequence.tokens))
            self._pending.begin(sequence, hashes, done=start.tokens // size)
        return appends

    def _missing(self, sequence: EngineSequence, start: KVStart) -> dict[GroupId, int]:
        known = len(sequence.tokens)
        return {
            group.group: blocks_ahead(group, computed=start.tokens, known=known)
            - start.present.get(group.group, 0)
            for group in self.groups
        }

    def _resumption(self, sequence: EngineSequence) -> KVStart:
        """What is there of a swapped sequence on the device: prefixes in full groups; of a window nothing."""
        swapped = self._host.swapped(sequence)
        shared, last, present = {}, {}, {}
        for group in self.groups:
            mine = group.group
            present[mine] = swapped.tables[mine].dropped_blocks
            if self._caching and group.window_tokens is None:
                entries = self._search.in_full(sequence, group, tokens=swapped.tokens)
                shared[mine], present[mine] = tuple(entry.block for entry in entries), len(entries)
                if entries:
                    last[mine] = entries[-1]
        return KVStart(swapped.tokens, shared, last, {}, present)

    def _set_border(self, sequence: EngineSequence) -> None:
        """The next block to be filled or, without a prefix cache, the next one to leave a window."""
        computed = sequence.computed_tokens
        borders: list[float] = []
        for group in self.groups:
            size, window = group.block_tokens, group.window_tokens
            if self._caching:
                borders.append((computed // size + 1) * size)
            if window is not None:
                borders.append((first_seen_block(group, computed) + 1) * size + window - 1)
        sequence.kv_border_tokens = min(borders, default=inf)

    def _drop_unseen(
        self, sequence: EngineSequence, group: KVGroup, table: GroupTable, fence: LaunchId | None
    ) -> None:
        count = first_seen_block(group, sequence.computed_tokens) - table.dropped_blocks
        if count > 0:
            # The oldest is freed first, so that what stays hittable ends in whole windows.
            self.pool.release(group.group, table.blocks[count - 1 :: -1], fence=fence)
            del table.blocks[:count]
            table.dropped_blocks += count


def _link(table: GroupTable, last: CachedBlock | None, blocks: int) -> None:
    """What the table stores next follows the cached block `last`, which ends its first `blocks` blocks."""
    if last is not None:
        table.stored_blocks, table.last_stored = blocks, last
    else:
        # Unknown: all is offered again from the start, if it is there.
        table.storable = table.dropped_blocks == 0
