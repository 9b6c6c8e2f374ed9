"""Who owns which KV block. A block is in one of three places: held (by count), free, or quarantined.

A free block that still holds hittable KV is *kept*: it is handed out only when no blank block is left, the
least recently freed first. A block that was freed while a launch might still touch it is *quarantined* until
that launch has completed. Both can be taken back by a prefix hit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId

from ridgeline_engine.block_group import BlockCounts, BlockGroup, Take
from ridgeline_engine.seam import LaunchId

OnEvict: TypeAlias = Callable[[Mapping[GroupId, Sequence[BlockId]]], None]
"""Told of kept blocks of all groups, oldest first, whose KV is about to be overwritten. If it raises it must have
changed nothing, and nothing is taken."""


class BlockPool:
    """Blocks of all KV groups. Not thread-safe: it belongs to the engine's thread."""

    def __init__(self, blocks: Mapping[GroupId, int], *, on_evict: OnEvict) -> None:
        self._groups = {
            group: BlockGroup(
                [0] * total, [BlockId(block) for block in reversed(range(total))], bytearray(total)
            )
            for group, total in blocks.items()
        }
        self._on_evict = on_evict

    def counts(self, group: GroupId) -> BlockCounts:
        found = self._groups[group]
        total, free, quarantined = len(found.holders), found.free, len(found.quarantined)
        return BlockCounts(total, total - free - quarantined, free, len(found.kept), quarantined)

    def holders(self, group: GroupId, block: BlockId) -> int:
        """How many tables name this block."""
        return self._groups[group].holders[block]

    def is_hittable(self, group: GroupId, block: BlockId) -> bool:
        """Whether the prefix cache names this block."""
        return self._groups[group].hittable[block] == 1

    def can_allocate(
        self,
        need: Mapping[GroupId, int],
        *,
        sharing: Mapping[GroupId, Sequence[BlockId]] | None = None,
        once_retired: bool = False,
    ) -> bool:
        """Whether `need` blocks of each group are free besides those of `sharing`, or will be once all open launches
        have completed."""
        for group, count in need.items():
            found = self._groups[group]
            free, wanted = found.free, () if sharing is None else sharing.get(group, ())
            if once_retired:
                free += len(found.quarantined)
            taken = sum(
                block in found.kept or (once_retired and block in found.quarantined) for block in wanted
            )
            if count > free - taken:
                return False
        return True

    def acquire(
        self, need: Mapping[GroupId, int], *, sharing: Mapping[GroupId, Sequence[BlockId]] | None = None
    ) -> dict[GroupId, tuple[BlockId, ...]]:
        """Adds a holder to each block of `sharing` and takes `need` new ones: in all groups or, whatever is
        raised on the way, in none.

        Blocks to share are held, kept or hittable in quarantine. Raises InvariantError where blocks lack: ask
        `can_allocate` before.
        """
        shared = {} if sharing is None else sharing
        if any(count < 0 for count in need.values()) or not self.can_allocate(need, sharing=shared):
            raise InvariantError(f"blocks {dict(need)} were taken without asking whether they are free")
        takes = {
            group: Take(self._groups[group], shared.get(group, ()), need.get(group, 0))
            for group in (*need, *(group for group in shared if group not in need))
        }
        try:
            for take in takes.values():
                take.do()
            evicted = {group: take.evicted for group, take in takes.items() if take.evicted}
            if evicted:
                self._on_evict(evicted)
        except BaseException:
            for take in takes.values():
                take.undo()
            raise
        return {group: takes[group].taken for group in need}

    def allocate(self, need: Mapping[GroupId, int]) -> dict[GroupId, tuple[BlockId, ...]]:
        """`acquire` of new blocks alone."""
        return self.acquire(need)

    def share(self, group: GroupId, blocks: Sequence[BlockId]) -> None:
        """`acquire` of blocks that are there."""
        self.acquire({}, sharing={group: blocks})

    def release(self, group: GroupId, blocks: Sequence[BlockId], *, fence: LaunchId | None) -> None:
        """Takes one holder off each block of a table, given head first; of none where it raises InvariantError.

        `fence` is the newest launch that may still touch them. Tails are freed before heads, so that they are
        also evicted first: a head without its tail is still a hit, a tail without its head is none.
        """
        found = self._groups[group]
        for block in blocks:
            if found.holders[block] <= 0:
                raise InvariantError(f"block {block} of group {group} was released twice")
        for block in reversed(blocks):
            found.holders[block] -= 1
            if found.holders[block] == 0:
                if fence is None:
                    found.put_back(block)
                else:
                    found.quarantined[block] = fence

    def touch(self, group: GroupId, block: BlockId, *, fence: LaunchId | None) -> None:
        """A free hittable block counts as just freed, after whatever was released with this fence."""
        found = self._groups[group]
        if fence is None:
            if block in found.kept:
                found.kept.move_to_end(block)
        elif found.holders[block] == 0:
            found.kept.pop(block, None)
            found.quarantined[block] = fence
            found.quarantined.move_to_end(block)

    def retire(self, launch: LaunchId) -> None:
        """Launches up to and including `launch` have completed: nothing of theirs touches a block any
        more."""
        for found in self._groups.values():
            while found.quarantined:
                block, fence = next(iter(found.quarantined.items()))
                if fence > launch:
                    break
                del found.quarantined[block]
                found.put_back(block)

    def set_hittable(self, group: GroupId, block: BlockId, hittable: bool) -> None:
        """The prefix cache starts or stops naming a block."""
        found = self._groups[group]
        if hittable and found.holders[block] == 0:
            raise InvariantError(f"block {block} of group {group} became hittable while nobody held it")
        found.hittable[block] = hittable
        if not hittable and block in found.kept:
            del found.kept[block]
            found.blank.append(block)

    def check(self) -> None:
        """Raises InvariantError unless every block is in exactly one place and every mark is consistent."""
        for group, found in self._groups.items():
            held = [block for block, count in enumerate(found.holders) if count > 0]
            places = [*held, *found.blank, *found.kept, *found.quarantined]
            if sorted(places) != list(range(len(found.holders))):
                raise InvariantError(f"group {group}: blocks lost or in two places: {sorted(places)}")
            if min(found.holders, default=0) < 0:
                raise InvariantError(f"group {group}: a negative count of holders")
            if any(found.hittable[block] for block in found.blank):
                raise InvariantError(f"group {group}: a hittable block counts as blank")
            if not all(found.hittable[block] for block in found.kept):
                raise InvariantError(f"group {group}: a kept block that no hit can reach")
            fences = list(found.quarantined.values())
            if fences != sorted(fences):
                raise InvariantError(f"group {group}: quarantine is out of order: {fences}")
