"""Which cached blocks a hit can lead to, and which text goes on from which. Reads an index; changes nothing."""

from collections.abc import Callable, Iterable, Iterator

from ridgeline_contracts.kv import BlockId

from ridgeline_engine.cached_block import CachedBlock, same_chain
from ridgeline_engine.prefix_cache import PrefixCache


def with_descendants(cache: PrefixCache, blocks: Iterable[BlockId]) -> list[CachedBlock]:
    """The indexed ones of `blocks` and all whose text goes on from theirs. Looks through the whole index where
    there may be any."""
    found = set(cache.entries(blocks))
    children = sum(entry.children for entry in found) - sum(entry.parent in found for entry in found)
    if children == 0 and cache.orphans == 0:
        return list(found)
    descends: dict[CachedBlock, bool] = {}
    for entry in cache.all_entries():
        path: list[CachedBlock] = []
        walked: CachedBlock | None = entry
        while walked is not None and walked not in descends:
            path.append(walked)
            walked = walked.parent
        verdict = walked is not None and descends[walked]
        for each in reversed(path):
            verdict = verdict or _indexed_like(cache, each) in found
            descends[each] = verdict
    return [entry for entry in cache.all_entries() if descends[entry]]


def useless_without(
    cache: PrefixCache, gone: Iterable[CachedBlock], *, holders: Callable[[BlockId], int]
) -> list[CachedBlock]:
    """Free blocks that no hit can reach once `gone`, just forgotten, are not there; for a window group.

    Tails go first, so what they leave behind may be less than a window: it is of no use to anybody.
    """
    found: dict[CachedBlock, None] = {}
    for tail in gone if cache.blocks_behind is not None else ():
        entry = tail.parent
        while entry is not None and cache.is_indexed(entry) and holders(entry.block) == 0:
            lost = entry.children - sum(1 for each in found if each.parent is entry)
            if entry in found or lost or _can_end_hit(cache, entry):
                break
            found[entry] = None
            entry = entry.parent
    return list(found)


def stranded(cache: PrefixCache) -> list[CachedBlock]:
    """Indexed blocks that no hit can reach. At once where there can be none; else looks through the index."""
    if cache.orphans == 0:
        return []
    reached: set[CachedBlock] = set()
    for entry in cache.all_entries():
        if _can_end_hit(cache, entry):
            reached.update(_run(cache, entry))
    return [entry for entry in cache.all_entries() if entry not in reached]


def _run(cache: PrefixCache, entry: CachedBlock) -> Iterator[CachedBlock]:
    """`entry` and the indexed blocks right before it, as many as a hit that ends there needs."""
    walked: CachedBlock | None = entry
    for _ in range(len(cache) if cache.blocks_behind is None else cache.blocks_behind):
        walked = None if walked is None else _indexed_like(cache, walked)
        if walked is None:
            return
        yield walked
        walked = walked.parent


def _indexed_like(cache: PrefixCache, entry: CachedBlock) -> CachedBlock | None:
    """`entry`, or the block that was stored anew with its text since it was forgotten."""
    if cache.is_indexed(entry):
        return entry
    again = cache.under(entry.block_hash)
    return again if again is not None and same_chain(again, entry) else None


def _can_end_hit(cache: PrefixCache, entry: CachedBlock) -> bool:
    count, last = 0, entry
    for each in _run(cache, entry):
        count, last = count + 1, each
    return last.parent is None or count == cache.blocks_behind
