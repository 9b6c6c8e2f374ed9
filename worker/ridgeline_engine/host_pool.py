"""Blocks of preempted sequences in the host's memory. Their ids are the host's own, 0 and up in each group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId, KVGroup

from ridgeline_engine.block_group import BlockCounts
from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import CachedBlock
from ridgeline_engine.seam import BlockCopy, CopyKind, LaunchId
from ridgeline_engine.sequence import Sequence as EngineSequence


@dataclass(frozen=True, slots=True)
class SwappedTable:
    """`blocks` are the host's, of the text's blocks behind the first `dropped_blocks`."""

    blocks: tuple[BlockId, ...]
    dropped_blocks: int
    stored_blocks: int
    linked: CachedBlock | None
    """The cached block that ends the first `stored_blocks`; None where nothing more is to be stored."""
    era: int


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a sequence left: the KV of its first `tokens` tokens, as far as their windows are still seen."""

    tokens: int
    tables: Mapping[GroupId, SwappedTable]


class HostPool:
    """Who holds which host block. One that is let go waits for the launch whose copies may still touch it."""

    def __init__(self, groups: Sequence[KVGroup], blocks: Mapping[GroupId, int]) -> None:
        self._groups = groups
        self._pool = BlockPool(
            {group.group: blocks.get(group.group, 0) for group in groups}, on_evict=_never_cached
        )
        self._swapped: dict[EngineSequence, Swapped] = {}
        self._leaving: list[Swapped] = []
        """Let go since the last launch: a copy of the next one may touch them."""

    def __contains__(self, sequence: EngineSequence) -> bool:
        return sequence in self._swapped

    def counts(self, group: GroupId) -> BlockCounts:
        return self._pool.counts(group)

    def has_room(self, sequence: EngineSequence) -> bool:
        """Whether what the sequence has computed fits."""
        return self._pool.can_allocate(self._need(sequence))

    def put(self, sequence: EngineSequence) -> list[BlockCopy]:
        """Takes blocks for what a running sequence has computed; returns the copies that fill them. Ask
        `has_room` before."""
        if sequence in self._swapped:
            raise InvariantError("a sequence was swapped out twice")
        taken = self._pool.allocate(self._need(sequence))
        tables = {
            group: SwappedTable(
                taken[group],
                table.dropped_blocks,
                table.stored_blocks,
                table.last_stored if table.storable else None,
                table.era,
            )
            for group, table in sequence.tables.items()
        }
        self._swapped[sequence] = Swapped(sequence.computed_tokens, tables)
        return [
            BlockCopy(CopyKind.SWAP_OUT, group, source, target)
            for group, table in sequence.tables.items()
            for source, target in zip(table.blocks, taken[group], strict=False)
        ]

    def swapped(self, sequence: EngineSequence) -> Swapped:
        """Raises InvariantError where nothing of the sequence is here."""
        found = self._swapped.get(sequence)
        if found is None:
            raise InvariantError("a sequence was to be swapped in that is not on the host")
        return found

    def drop(self, sequence: EngineSequence) -> None:
        """Lets go of what is held of a sequence, if anything."""
        found = self._swapped.pop(sequence, None)
        if found is not None:
            self._leaving.append(found)

    def launched(self, launch: LaunchId) -> None:
        """`launch` took along all copies decided so far."""
        for found in self._leaving:
            for group, table in found.tables.items():
                self._pool.release(group, table.blocks, fence=launch)
        self._leaving.clear()

    def retire(self, launch: LaunchId) -> None:
        """Launches up to and including `launch` have completed."""
        self._pool.retire(launch)

    def check(self) -> None:
        """Raises InvariantError unless each held block is of one swapped sequence."""
        self._pool.check()
        for group in self._groups:
            held = [
                block
                for found in (*self._swapped.values(), *self._leaving)
                for block in found.tables[group.group].blocks
            ]
            if len(set(held)) != len(held) or len(held) != self._pool.counts(group.group).held:
                raise InvariantError(f"host blocks of group {group.group} are lost or in two places: {held}")

    def _need(self, sequence: EngineSequence) -> dict[GroupId, int]:
        return {
            group.group: group.blocks_for(sequence.computed_tokens)
            - sequence.tables[group.group].dropped_blocks
            for group in self._groups
        }


def _never_cached(blocks: Mapping[GroupId, Sequence[BlockId]]) -> None:
    raise InvariantError(f"host blocks {dict(blocks)} were evicted, though no hit leads to them")
