"""The blocks of one KV group, and what one acquisition takes of them.

Kept and quarantined blocks stand in ordered dicts: a hit takes them out of the middle, and the oldest is found
at once (a plain dict would walk over all that was deleted at its front).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId

from ridgeline_engine.seam import LaunchId


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
class BlockGroup:
    holders: list[int]
    """By block: how many tables name it."""
    blank: list[BlockId]
    """Free, nothing worth keeping inside; taken from the end."""
    hittable: bytearray
    """By block: 1 where the prefix cache names it, wherever it is."""
    kept: OrderedDict[BlockId, None] = field(default_factory=OrderedDict)
    """Free but hittable, least recently freed first."""
    quarantined: OrderedDict[BlockId, LaunchId] = field(default_factory=OrderedDict)
    """Waiting for that launch; in the order of freeing, which is also the order of launches."""

    @property
    def free(self) -> int:
        return len(self.blank) + len(self.kept)

    def put_back(self, block: BlockId) -> None:
        if self.hittable[block]:
            self.kept[block] = None
        else:
            self.blank.append(block)


class Take:
    """What one group gives in one `acquire`: chosen first, then done, undone if anything was raised."""

    def __init__(self, found: BlockGroup, sharing: Sequence[BlockId], count: int) -> None:
        """Raises InvariantError for a block to share in which nothing is."""
        for block in sharing:
            if found.holders[block] == 0 and not found.hittable[block]:
                raise InvariantError(f"block {block} was shared, but nothing is in it")
        self._found = found
        self._holders = [(block, found.holders[block]) for block in sharing]
        self._fences = {block: found.quarantined[block] for block in sharing if block in found.quarantined}
        self._left = max(0, len(found.blank) - count)
        self._blank = found.blank[self._left :]
        wanted = set(sharing)
        kept = (block for block in found.kept if block not in wanted)
        self.evicted = [block for block, _ in zip(kept, range(count - len(self._blank)), strict=False)]
        self.taken = (*reversed(self._blank), *self.evicted)

    def do(self) -> None:
        found = self._found
        for block, held in self._holders:
            if held == 0 and found.quarantined.pop(block, None) is None:
                del found.kept[block]
            found.holders[block] = held + 1
        del found.blank[self._left :]
        for block in self.evicted:
            del found.kept[block]
            found.hittable[block] = 0
        for block in self.taken:
            found.holders[block] = 1

    def undo(self) -> None:
        """Right wherever `do` stopped. Kept blocks that were to be shared count as just freed."""
        found = self._found
        for block in self.taken:
            found.holders[block] = 0
        found.blank[self._left :] = self._blank
        for block in reversed(self.evicted):
            found.hittable[block] = 1
            found.kept[block] = None
            found.kept.move_to_end(block, last=False)
        for block, held in reversed(self._holders):
            found.holders[block] = held
            if held == 0 and block in self._fences:
                found.quarantined[block] = self._fences[block]
            elif held == 0:
                found.kept[block] = None
        if self._fences:
            found.quarantined = OrderedDict(sorted(found.quarantined.items(), key=lambda item: item[1]))
