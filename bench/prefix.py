"""The prefix cache at scale: what a look-up, a cached block, an insertion and an eviction cost.

    python bench/prefix.py [--blocks 1000000] [--prompt-tokens 8192] [--json]

A cache of one KV group is filled with random prompts. Then prompts that are in it are looked up, by turns with a plain
walk: one dict look-up a block over the same hashes, which compares no tokens and so may not be believed. Both are given
hashes; what computing them costs is printed beside them, since a prompt that waits is hashed once. Evictions are those
of a pool that is full of cached blocks and hands them out again.
"""

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import psutil
from ridgeline_contracts.blockhash import HashScope, block_hashes
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId, GroupId, KVDtype, KVGroup, KVKind
from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import TOKEN_BYTES, CachedBlock, pack_tokens
from ridgeline_engine.kv_index import KVIndex

GROUP = KVGroup(GroupId(0), (0,), KVKind.FULL, 16, 1, 64, KVDtype.BF16)
SCOPE = HashScope(b"a tenant", "weights")
VOCAB_TOKENS = 128_000
EVICTED_AT_ONCE = 32
"""Blocks of an admission, say: 512 tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    packed: bytes
    hashes: Sequence[BlockHash]


@dataclass(frozen=True, slots=True)
class Figures:
    """Times are medians of the prompts looked up."""

    blocks: int
    prompt_tokens: int
    lookup_us: float
    walk_us: float
    hashing_us: float
    bytes_a_block: float
    inserted_a_s: float
    evicted_a_s: float

    @property
    def ratio(self) -> float:
        return self.lookup_us / self.walk_us

    def text(self) -> str:
        return (
            f"{self.prompt_tokens} tokens in a cache of {self.blocks:,} blocks of {GROUP.block_tokens}: "
            f"look-up {self.lookup_us:.1f} us, plain walk {self.walk_us:.1f} us, ratio {self.ratio:.2f}; "
            f"hashing, once a prompt, {self.hashing_us:.0f} us\n"
            f"memory: {self.bytes_a_block:.0f} bytes a cached block beside its KV\n"
            f"{self.inserted_a_s:,.0f} blocks inserted a second, {self.evicted_a_s:,.0f} evicted a second"
        )


class Cache:
    """Pool and index of one group, as the engine's KV manager holds them."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool({GROUP.group: blocks}, on_evict=lambda evicted: self.index.evict(evicted))
        self.index = KVIndex((GROUP,), {GROUP.group: blocks}, self.pool, event_buffer=8192)

    def insert(self, prompt: Prompt) -> None:
        """All blocks of a prompt, computed and given back."""
        cache, size = self.index.caches[GROUP.group], GROUP.block_tokens * TOKEN_BYTES
        taken = self.pool.allocate({GROUP.group: len(prompt.hashes)})[GROUP.group]
        parent: CachedBlock | None = None
        for index, (block, block_hash) in enumerate(zip(taken, prompt.hashes, strict=True)):
            tokens = prompt.packed[index * size : (index + 1) * size]
            parent = cache.store(CachedBlock(block_hash, block, tokens, SCOPE, parent))
            self.pool.set_hittable(GROUP.group, block, True)
        self.pool.release(GROUP.group, taken, fence=None)

    def evict(self, count: int) -> tuple[BlockId, ...]:
        return self.pool.allocate({GROUP.group: count})[GROUP.group]


def drawn_prompt(choices: random.Random, tokens: int) -> tuple[Prompt, float]:
    """A prompt, and the seconds that its hashes took."""
    ids = [choices.randrange(VOCAB_TOKENS) for _ in range(tokens)]
    started = time.perf_counter()
    hashes = block_hashes(SCOPE, ids, block_tokens=GROUP.block_tokens)
    return Prompt(pack_tokens(ids), hashes), time.perf_counter() - started


def measure(*, blocks: int, prompt_tokens: int, lookups: int, say: Callable[[str], None]) -> Figures:
    """Fills, looks up, evicts. The memory is what this process grew by while the cache was filled."""
    choices, each = random.Random(1), prompt_tokens // GROUP.block_tokens
    prompts, known, hashing, inserting = max(1, blocks // each), list[Prompt](), list[float](), 0.0
    cache = Cache(prompts * each)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for number in range(prompts):
        prompt, took = drawn_prompt(choices, prompt_tokens)
        hashing.append(took)
        if number % max(1, prompts // lookups) == 0:
            known.append(prompt)
        started = time.perf_counter()
        cache.insert(prompt)
        inserting += time.perf_counter() - started
        if number % max(1, prompts // 10) == 0:
            say(f"{(number + 1) * each:,} blocks are in")
    del prompt
    gc.collect()
    kept = sum(sys.getsizeof(each.packed) for each in known)
    grown = psutil.Process().memory_info().rss - before - kept
    lookup, walk = _lookups(cache, known)
    say("evicting")
    evicted, started = 0, time.perf_counter()
    while evicted + EVICTED_AT_ONCE <= prompts * each // 2:
        evicted += len(cache.evict(EVICTED_AT_ONCE))
    evicting = time.perf_counter() - started
    return Figures(
        blocks=prompts * each,
        prompt_tokens=prompt_tokens,
        lookup_us=statistics.median(lookup) * 1e6,
        walk_us=statistics.median(walk) * 1e6,
        hashing_us=statistics.median(hashing) * 1e6,
        bytes_a_block=grown / (prompts * each),
        inserted_a_s=prompts * each / inserting,
        evicted_a_s=evicted / evicting if evicted else 0.0,
    )


def _lookups(cache: Cache, known: Sequence[Prompt]) -> tuple[list[float], list[float]]:
    """Seconds of each prompt's look-up and of its plain walk. While one prompt is looked up its neighbour is walked,
    then the other way round: neither side finds in the processor's caches what the other just read."""
    index = cache.index.caches[GROUP.group]
    plain = {each.block_hash: each for each in index.all_entries()}
    lookup, walk = list[float](), list[float]()
    for shift in (0, 1):
        for number, prompt in enumerate(known):
            started = time.perf_counter()
            if (number + shift) % 2:
                found = index.find(SCOPE, prompt.packed, prompt.hashes)
                lookup.append(time.perf_counter() - started)
            else:
                found = _walk(plain, prompt.hashes)
                walk.append(time.perf_counter() - started)
            assert len(found) == len(prompt.hashes)
    return lookup, walk


def _walk(plain: dict[BlockHash, CachedBlock], hashes: Sequence[BlockHash]) -> list[CachedBlock]:
    found = []
    for block_hash in hashes:
        entry = plain.get(block_hash)
        if entry is None:
            break
        found.append(entry)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--prompt-tokens", type=int, default=8_192)
    parser.add_argument("--lookups", type=int, default=64, help="prompts that are looked up")
    parser.add_argument("--json", action="store_true", help="figures alone, as one JSON object")
    options = parser.parse_args()
    if options.prompt_tokens < GROUP.block_tokens or options.blocks < 1 or options.lookups < 1:
        parser.error(f"give at least one block, one look-up and prompts of {GROUP.block_tokens} tokens")
    found = measure(
        blocks=options.blocks,
        prompt_tokens=options.prompt_tokens,
        lookups=options.lookups,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    print(json.dumps(asdict(found) | {"ratio": found.ratio}) if options.json else found.text())


if __name__ == "__main__":
    main()
