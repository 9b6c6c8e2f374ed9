"""Who owns which KV block. A block is in one of three places: held (by count), free, or quarantined.

A free block that still holds hittable KV is *kept*: it is handed out only when no blank block is left, the
least recently freed first. A block that was freed while a launch might still touch it is *quarantined* until
that launch has completed. Both can be taken back by a prefix hit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId

from ridgeline_engine.seam import LaunchId

OnEvict: TypeAlias = Callable[[GroupId, Sequence[BlockId]], None]
"""Told of kept blocks, oldest first, whose KV is about to be overwritten."""


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Of one group. held + free + quarantined = total; `kept` is the part of `free` that still holds hittable
    KV."""

    total: int
    held: int
    free: int
    kept: int
    quarantined: int


@dataclass(slots=True)
class _Group:
    total: int
    holders: list[int]
    """By block: how many tables name it."""
    blank: list[BlockId]
    """Free, nothing worth keeping inside; taken from the end."""
    kept: dict[BlockId, None] = field(default_factory=dict)
    """Free but hittable, least recently freed first: a dict, because a hit takes blocks out of the middle."""
    quarantined: dict[BlockId, LaunchId] = field(default_factory=dict)
    """Waiting for that launch; in the order of freeing, which is also the order of launches."""
    hittable: set[BlockId] = field(default_factory=set)
    """Blocks that the prefix cache names, wherever they are."""

    @property
    def free(self) -> int:
        return len(self.blank) + len(self.kept)

    def put_back(self, block: BlockId) -> None:
        if block in self.hittable:
            self.kept[block] = None
        else:
            self.blank.append(block)


class BlockPool:
    """Blocks of all KV groups. Not thread-safe: it belongs to the engine's thread."""

    def __init__(self, blocks: Mapping[GroupId, int], *, on_evict: OnEvict) -> None:
        self._groups = {
            group: _Group(total, [0] * total, [BlockId(block) for block in reversed(range(total))])
            for group, total in blocks.items()
        }
        self._on_evict = on_evict

    def counts(self, group: GroupId) -> BlockCounts:
        found = self._groups[group]
        held = found.total - found.free - len(found.quarantined)
        return BlockCounts(found.total, held, found.free, len(found.kept), len(found.quarantined))

    @property
    def has_quarantined(self) -> bool:
        """Whether a launch still keeps blocks from being free."""
        return any(found.quarantined for found in self._groups.values())

    def holders(self, group: GroupId, block: BlockId) -> int:
        """How many tables name this block."""
        return self._groups[group].holders[block]

    def is_hittable(self, group: GroupId, block: BlockId) -> bool:
        """Whether the prefix cache names this block."""
        return block in self._groups[group].hittable

    def can_allocate(
        self, need: Mapping[GroupId, int], *, sharing: Mapping[GroupId, Sequence[BlockId]] | None = None
    ) -> bool:
        """Whether `need` blocks of each group are free, after the free ones among `sharing` were taken by
        `share`."""
        for group, count in need.items():
            found = self._groups[group]
            taken = sum(1 for block in (sharing or {}).get(group, ()) if block in found.kept)
            if count > found.free - taken:
                return False
        return True

    def allocate(self, need: Mapping[GroupId, int]) -> dict[GroupId, tuple[BlockId, ...]]:
        """Takes blocks of every group or, raising InvariantError, of none: ask `can_allocate` before."""
        if not self.can_allocate(need):
            raise InvariantError(f"blocks {dict(need)} were taken without asking whether they are free")
        return {group: self._take(group, count) for group, count in need.items()}

    def _take(self, group: GroupId, count: int) -> tuple[BlockId, ...]:
        found = self._groups[group]
        taken = [found.blank.pop() for _ in range(min(count, len(found.blank)))]
        evicted = [block for block, _ in zip(found.kept, range(count - len(taken)), strict=False)]
        for block in evicted:
            del found.kept[block]
            found.hittable.remove(block)
        if evicted:
            self._on_evict(group, evicted)
        taken += evicted
        for block in taken:
            found.holders[block] = 1
        return tuple(taken)

    def share(self, group: GroupId, blocks: Sequence[BlockId]) -> None:
        """Adds a holder to blocks that are held, kept or hittable in quarantine."""
        found = self._groups[group]
        for block in blocks:
            if found.holders[block] == 0:
                if block not in found.hittable:
                    raise InvariantError(f"block {block} of group {group} was shared, but nothing is in it")
                if found.quarantined.pop(block, None) is None:
                    del found.kept[block]
            found.holders[block] += 1

    def release(self, group: GroupId, blocks: Sequence[BlockId], *, fence: LaunchId | None) -> None:
        """Takes one holder off each block of a table, given head first.

        `fence` is the newest launch that may still touch them. Tails are freed before heads, so that they are
        also evicted first: a head without its tail is still a hit, a tail without its head is none.
        """
        found = self._groups[group]
        for block in reversed(blocks):
            if found.holders[block] <= 0:
                raise InvariantError(f"block {block} of group {group} was released twice")
            found.holders[block] -= 1
            if found.holders[block] == 0:
                if fence is None:
                    found.put_back(block)
                else:
                    found.quarantined[block] = fence

    def retire(self, launch: LaunchId) -> None:
        """Launches up to and including `launch` have completed: nothing of theirs touches a block any
        more."""
        for found in self._groups.values():
            done = [block for block, fence in found.quarantined.items() if fence <= launch]
            for block in done:
                del found.quarantined[block]
                found.put_back(block)

    def set_hittable(self, group: GroupId, block: BlockId, hittable: bool) -> None:
        """The prefix cache starts or stops naming a block."""
        found = self._groups[group]
        if hittable:
            if found.holders[block] == 0:
                raise InvariantError(f"block {block} of group {group} became hittable while nobody held it")
            found.hittable.add(block)
            return
        found.hittable.discard(block)
        if block in found.kept:
            del found.kept[block]
            found.blank.append(block)

    def check(self) -> None:
        """Raises InvariantError unless every block is in exactly one place and every mark is consistent."""
        for group, found in self._groups.items():
            held = {BlockId(block) for block, count in enumerate(found.holders) if count > 0}
            places = [*held, *found.blank, *found.kept, *found.quarantined]
            if sorted(places) != list(range(found.total)):
                raise InvariantError(f"group {group}: blocks lost or in two places: {sorted(places)}")
            if min(found.holders, default=0) < 0:
                raise InvariantError(f"group {group}: a negative count of holders")
            if not found.hittable.isdisjoint(found.blank):
                raise InvariantError(f"group {group}: a hittable block counts as blank")
            if not found.hittable.issuperset(found.kept):
                raise InvariantError(f"group {group}: a kept block that no hit can reach")
            fences = list(found.quarantined.values())
            if fences != sorted(fences):
                raise InvariantError(f"group {group}: quarantine is out of order: {fences}")
