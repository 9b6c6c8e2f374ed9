"""The longest prefix that is cached in every KV group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import lcm

from ridgeline_contracts.kv import BlockId, GroupId, KVGroup

from ridgeline_engine.cached_block import CachedBlock
from ridgeline_engine.kv_tables import first_seen_block
from ridgeline_engine.prefix_cache import PrefixCache
from ridgeline_engine.sequence import Sequence as EngineSequence


@dataclass(frozen=True, slots=True)
class KVStart:
    """KV that is there before a sequence runs: whole blocks to share, and in a fork one block a group to
    copy."""

    tokens: int
    shared: Mapping[GroupId, tuple[BlockId, ...]]
    """In a window group only those that what follows can see, right before the end."""
    last_stored: Mapping[GroupId, CachedBlock]
    copied: Mapping[GroupId, BlockId]
    present: Mapping[GroupId, int]
    """By group, blocks of the table before the first new one: shared ones and those before a window."""

    @classmethod
    def nothing(cls) -> "KVStart":
        return cls(0, {}, {}, {}, {})


class PrefixSearch:
    """Looks a sequence up in the indexes of all groups."""

    def __init__(self, groups: Sequence[KVGroup], caches: Mapping[GroupId, PrefixCache]) -> None:
        self._full = [group for group in groups if group.window_tokens is None]
        self._windows = [group for group in groups if group.window_tokens is not None]
        self._caches = caches
        self._granule_tokens = lcm(*(group.block_tokens for group in groups))

    def find(self, sequence: EngineSequence) -> KVStart:
        """Ends before the last token, since one must be computed; and on a block of every group."""
        tokens = len(sequence.tokens) - 1
        found: dict[GroupId, Sequence[CachedBlock | None]] = {}
        for group in self._full:
            found[group.group] = entries = self.in_full(sequence, group, tokens=tokens)
            tokens = min(tokens, len(entries) * group.block_tokens)
        tokens -= tokens % self._granule_tokens
        if tokens and self._windows:
            found |= {group.group: self._in_window(sequence, group, tokens) for group in self._windows}
            tokens = self._longest(found, tokens)
        if tokens == 0:
            return KVStart.nothing()
        shared, last, present = {}, {}, {}
        for group in (*self._full, *self._windows):
            end = present[group.group] = tokens // group.block_tokens
            seen = found[group.group][first_seen_block(group, tokens) : end]
            entries = [entry for entry in seen if entry is not None]
            shared[group.group] = tuple(entry.block for entry in entries)
            if entries:
                last[group.group] = entries[-1]
        return KVStart(tokens, shared, last, {}, present)

    def in_full(self, sequence: EngineSequence, group: KVGroup, *, tokens: int) -> list[CachedBlock]:
        """The longest cached prefix in one group, within the first `tokens` tokens."""
        hashes = sequence.block_hashes(group.block_tokens, tokens=tokens)
        return self._caches[group.group].find(sequence.scope, sequence.packed_tokens(tokens), hashes)

    def _in_window(self, sequence: EngineSequence, group: KVGroup, tokens: int) -> list[CachedBlock | None]:
        hashes = sequence.block_hashes(group.block_tokens, tokens=tokens)
        cache = self._caches[group.group]
        return cache.find_scattered(sequence.scope, sequence.packed_tokens(tokens), hashes)

    def _longest(self, found: Mapping[GroupId, Sequence[CachedBlock | None]], tokens: int) -> int:
        """The last place, `tokens` or before, at which every window group has what comes right before."""
        runs = {group.group: _run_starts(found[group.group]) for group in self._windows}
        for end in range(tokens, 0, -self._granule_tokens):
            if all(
                runs[group.group][end // group.block_tokens] <= first_seen_block(group, end)
                for group in self._windows
            ):
                return end
        return 0


def _run_starts(found: Sequence[CachedBlock | None]) -> list[int]:
    """For each end (0 to len), where the unbroken run of blocks before it starts."""
    starts = [0]
    for index, entry in enumerate(found):
        starts.append(index + 1 if entry is None else starts[-1])
    return starts
