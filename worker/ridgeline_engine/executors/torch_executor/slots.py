"""What the executor keeps per slot: whose it is, its block tables, how to sample for it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import KVGroup

from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId


class SlotTable:
    """Stable slots. Raises InvariantError for a delta that contradicts what is held, and then changes
    nothing."""

    def __init__(self, groups: Sequence[KVGroup], *, max_batch: int, max_context_tokens: int) -> None:
        self.groups = tuple(groups)
        self.max_batch = max_batch
        self.block_tables: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.zeros((max_batch, group.blocks_for(max_context_tokens)), dtype=np.int32) for group in groups
        )
        """By group: [slot, index]. Entries past a slot's count are stale."""
        self.block_counts: tuple[npt.NDArray[np.int32], ...] = tuple(
            np.zeros(max_batch, dtype=np.int32) for _ in groups
        )
        self._owners: list[SlotAdmit | None] = [None] * max_batch

    def owner(self, slot: SlotId, generation: Generation) -> SlotAdmit:
        """The admission that holds the slot. Raises InvariantError if it is not of that generation."""
        owner = self._owners[slot] if 0 <= slot < self.max_batch else None
        if owner is None or owner.generation != generation:
            held = "nobody" if owner is None else f"generation {owner.generation}"
            raise InvariantError(f"slot {slot} is used for generation {generation} but held by {held}")
        return owner

    def release(self, slot: SlotId) -> None:
        if not 0 <= slot < self.max_batch or self._owners[slot] is None:
            raise InvariantError(f"slot {slot} is released but held by nobody")
        self._owners[slot] = None

    def admit(self, admit: SlotAdmit) -> None:
        slot = admit.slot
        if not 0 <= slot < self.max_batch:
            raise InvariantError(f"slot {slot} does not exist: there are {self.max_batch}")
        owner = self._owners[slot]
        if owner is not None:
            raise InvariantError(f"slot {slot} is admitted to while generation {owner.generation} holds it")
        self._owners[slot] = admit
        for counts in self.block_counts:
            counts[slot] = 0

    def append(self, append: BlockAppend) -> None:
        if self._owners[append.slot] is None:
            raise InvariantError(f"slot {append.slot} gets blocks but is held by nobody")
        table, counts = self.block_tables[append.group], self.block_counts[append.group]
        held = int(counts[append.slot])
        count = held + len(append.blocks)
        if count > table.shape[1]:
            raise InvariantError(
                f"slot {append.slot} has {count} blocks; {table.shape[1]} hold the whole context"
            )
        table[append.slot, held:count] = append.blocks
        counts[append.slot] = count

    def check_room(self, rows: Sequence[RowPlan]) -> None:
        """Raises InvariantError for a row whose blocks do not hold its positions."""
        for group, counts in zip(self.groups, self.block_counts, strict=True):
            for row in rows:
                end = row.start + len(row.tokens)
                if end > int(counts[row.slot]) * group.block_tokens:
                    raise InvariantError(
                        f"slot {row.slot} computes up to position {end} but has {counts[row.slot]} blocks"
                        f" of {group.block_tokens} tokens in group {group.group}"
                    )
