"""Blocks that running sequences are computing right now, by hash: who comes with the same prompt had better wait."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline_contracts.ids import BlockHash

from ridgeline_engine.sequence import Sequence as EngineSequence


@dataclass(slots=True)
class _Open:
    hashes: Sequence[BlockHash]
    done: int
    """Blocks from the start that are stored, or were there."""


class PendingPrefixes:
    """Hashes alone, not tokens: a collision costs a wait and never a wrong hit."""

    def __init__(self) -> None:
        self._open: dict[EngineSequence, _Open] = {}
        self._owners: dict[BlockHash, EngineSequence] = {}

    def begin(self, owner: EngineSequence, hashes: Sequence[BlockHash], *, done: int) -> None:
        """`owner` starts to compute the blocks of `hashes` behind the first `done`."""
        if done < len(hashes):
            self._open[owner] = _Open(hashes, done)
            for block_hash in hashes[done:]:
                self._owners.setdefault(block_hash, owner)

    def advance(self, owner: EngineSequence, done: int) -> None:
        """The first `done` blocks can be hit now, or never will be."""
        found = self._open.get(owner)
        if found is None:
            return
        for block_hash in found.hashes[found.done : done]:
            if self._owners.get(block_hash) is owner:
                del self._owners[block_hash]
        found.done = max(found.done, done)
        if found.done >= len(found.hashes):
            del self._open[owner]

    def end(self, owner: EngineSequence) -> None:
        """`owner` computes no more."""
        if owner in self._open:
            self.advance(owner, len(self._open[owner].hashes))

    def owner(self, block_hash: BlockHash) -> EngineSequence | None:
        """Who is computing this block."""
        return self._owners.get(block_hash)

    def last_awaited(
        self, sequence: EngineSequence, hashes: Sequence[BlockHash], *, found: int
    ) -> BlockHash | None:
        """Of the unbroken run of blocks right behind the first `found` that a sequence before `sequence` in rank is
        computing, the last one; None where the next block is nobody's."""
        last = None
        for block_hash in hashes[found:]:
            owner = self._owners.get(block_hash)
            if owner is None or owner.rank >= sequence.rank:
                break
            last = block_hash
        return last
