"""A hit is only on equal tokens behind equal tokens, whatever the hashes say."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from ridgeline_contracts.blockhash import HashScope, block_hashes, root_hash
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_engine.cached_block import CachedBlock, pack_tokens
from ridgeline_engine.kv_events import KVStored
from ridgeline_engine.prefix_cache import PrefixCache
from ridgeline_engine.prefix_reach import stranded, useless_without, with_descendants

G0 = GroupId(0)
SCOPE = HashScope(b"tenant-a", "weights-1")
TOKENS = tuple(range(48))


def _cache(block_tokens: int, *, blocks: int = 4_000, blocks_behind: int | None = None) -> PrefixCache:
    return PrefixCache(G0, block_tokens, blocks=blocks, blocks_behind=blocks_behind)


def _entry(
    block_hash: BlockHash,
    block: int,
    tokens: tuple[int, ...],
    scope: HashScope = SCOPE,
    parent: CachedBlock | None = None,
) -> CachedBlock:
    return CachedBlock(block_hash, BlockId(block), pack_tokens(tokens), scope, parent)


def _forget(cache: PrefixCache, *blocks: int) -> None:
    cache.forget(cache.entries(map(BlockId, blocks)))


def _store(
    cache: PrefixCache, tokens: tuple[int, ...], *, first_block: int = 0, scope: HashScope = SCOPE
) -> None:
    parent: CachedBlock | None = None
    for index, block_hash in enumerate(block_hashes(scope, tokens, block_tokens=cache.block_tokens)):
        step = cache.block_tokens
        entry = _entry(
            block_hash, first_block + index, tokens[index * step : (index + 1) * step], scope, parent
        )
        parent = cache.store(entry)


def _hit(cache: PrefixCache, tokens: tuple[int, ...], scope: HashScope = SCOPE) -> list[int]:
    hashes = block_hashes(scope, tokens, block_tokens=cache.block_tokens)
    return [entry.block for entry in cache.find(scope, pack_tokens(tokens), hashes)]


def test_the_longest_stored_prefix_is_hit() -> None:
    cache = _cache(16)
    _store(cache, TOKENS)
    assert _hit(cache, TOKENS) == [0, 1, 2]
    assert _hit(cache, (*TOKENS[:40], 7, 7, 7)) == [0, 1]
    assert _hit(cache, TOKENS[1:]) == []


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(HashScope(b"tenant-b", "weights-1"), id="another-salt"),
        pytest.param(HashScope(b"tenant-a", "weights-2"), id="other-weights"),
        pytest.param(HashScope(b"tenant-a", "weights-1", "adapter"), id="an-adapter"),
    ],
)
def test_another_scope_is_never_hit(other: HashScope) -> None:
    cache = _cache(16)
    _store(cache, TOKENS)
    assert _hit(cache, TOKENS, other) == []
    # Not even by a query that brings this scope's hashes.
    hashes = block_hashes(SCOPE, TOKENS, block_tokens=16)
    assert cache.find(other, pack_tokens(TOKENS), hashes) == []


def test_larger_blocks_are_indexed_by_every_kth_hash() -> None:
    cache = _cache(32)
    _store(cache, TOKENS)
    assert len(cache) == 1
    assert _hit(cache, TOKENS) == [0]


def test_equal_blocks_are_indexed_once() -> None:
    cache = _cache(16)
    _store(cache, TOKENS)
    _store(cache, (*TOKENS, *range(16)), first_block=10)
    assert _hit(cache, (*TOKENS, *range(16))) == [0, 1, 2, 13]
    cache.check()


def test_a_forced_collision_of_hashes_does_not_cross() -> None:
    cache = _cache(16)
    same = BlockHash(b"0123456789abcdef")
    mine, theirs = tuple(range(16)), tuple(range(100, 116))
    assert cache.store(_entry(same, 0, mine, SCOPE, None)) is not None
    assert cache.store(_entry(same, 1, theirs, SCOPE, None)) is None
    assert [entry.block for entry in cache.find(SCOPE, pack_tokens(mine), [same])] == [0]
    assert cache.find(SCOPE, pack_tokens(theirs), [same]) == []
    cache.check()


def test_a_tail_is_not_hit_behind_a_head_that_took_the_hash_of_its_own() -> None:
    cache = _cache(16)
    head_hash, tail_hash = BlockHash(b"h" * 16), BlockHash(b"t" * 16)
    mine, theirs, tail = tuple(range(16)), tuple(range(50, 66)), tuple(range(16, 32))
    head = cache.store(_entry(head_hash, 0, mine, SCOPE, None))
    cache.store(_entry(tail_hash, 1, tail, SCOPE, head))
    _forget(cache, 0)
    cache.store(_entry(head_hash, 2, theirs, SCOPE, None))
    found = cache.find(SCOPE, pack_tokens((*theirs, *tail)), [head_hash, tail_hash])
    assert [entry.block for entry in found] == [2]


def test_a_tail_is_hit_again_once_its_head_was_computed_again() -> None:
    cache = _cache(16)
    _store(cache, TOKENS)
    _forget(cache, 0)
    assert _hit(cache, TOKENS) == []
    _store(cache, TOKENS[:16], first_block=9)
    assert _hit(cache, TOKENS) == [9, 1, 2]


def test_what_is_left_is_told_in_runs() -> None:
    cache = _cache(16)
    _store(cache, TOKENS)
    hashes = block_hashes(SCOPE, TOKENS)
    _forget(cache, 1, 7)
    assert cache.stored() == [
        KVStored(root_hash(SCOPE), (hashes[0],), G0),
        KVStored(hashes[1], (hashes[2],), G0),
    ]


def test_plain_lru_strands_tails_and_tails_first_strand_nothing() -> None:
    """A plain LRU takes the least recently read block, a head, and with it all that stands behind."""
    plain, ours = _cache(16), _cache(16)
    for cache in (plain, ours):
        _store(cache, TOKENS)
    for head, tail, lost in ((0, 2, 2), (1, 1, 1)):
        _forget(plain, head)
        _forget(ours, tail)
        assert len(stranded(plain)) == lost
        assert stranded(ours) == []


def test_what_a_window_left_behind_goes_with_its_tail() -> None:
    cache = _cache(16, blocks_behind=2)
    _store(cache, TOKENS)
    _forget(cache, 0)
    # Blocks 1 and 2 end a hit; without 2, block 1 ends none.
    assert stranded(cache) == []
    gone = cache.entries([BlockId(2)])
    cache.forget(gone)
    assert [entry.block for entry in stranded(cache)] == [1]
    assert [entry.block for entry in useless_without(cache, gone, holders=lambda _block: 0)] == [1]
    assert useless_without(cache, gone, holders=lambda _block: 1) == []


def test_a_block_that_is_not_whole_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="not whole"):
        _cache(16).store(_entry(BlockHash(b"x" * 16), 0, (1,)))


class CacheMachine(RuleBasedStateMachine):
    """Hashes of two values only, so that nearly everything collides; the truth is kept by block."""

    BEHIND: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.cache = _cache(1, blocks_behind=self.BEHIND)
        self.truth: dict[BlockId, tuple[HashScope, tuple[int, ...]]] = {}
        self.next_block = 0

    texts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
    scopes = st.sampled_from([SCOPE, HashScope(b"tenant-b", "weights-1")])

    def _hashes(self, tokens: tuple[int, ...]) -> list[BlockHash]:
        # The length and the last bit of the sum of a prefix: siblings collide.
        return [BlockHash(bytes([end, sum(tokens[:end]) % 2])) for end in range(1, len(tokens) + 1)]

    def _block_of(self, scope: HashScope, text: tuple[int, ...]) -> BlockId | None:
        return next((block for block, known in self.truth.items() if known == (scope, text)), None)

    @rule(scope=scopes, tokens=texts)
    def store(self, scope: HashScope, tokens: tuple[int, ...]) -> None:
        parent: CachedBlock | None = None
        for end, block_hash in enumerate(self._hashes(tokens), start=1):
            block = BlockId(self.next_block)
            self.next_block += 1
            entry = _entry(block_hash, block, tokens[end - 1 : end], scope, parent)
            parent = self.cache.store(entry)
            if parent is None:
                return
            if parent is entry:
                assert self._block_of(scope, tokens[:end]) is None
                self.truth[block] = (scope, tokens[:end])
            else:
                assert self.truth[parent.block] == (scope, tokens[:end])

    @rule(choice=st.integers(0, 100), count=st.integers(1, 3))
    def evict(self, choice: int, count: int) -> None:
        start = choice % max(1, len(self.truth))
        blocks = sorted(self.truth)[start : start + count]
        _forget(self.cache, *blocks)
        for block in blocks:
            del self.truth[block]

    @rule(choice=st.integers(0, 100))
    def try_to_evict(self, choice: int) -> None:
        blocks = sorted(self.truth)[choice % max(1, len(self.truth)) :][:2]
        entries = self.cache.entries(blocks)
        self.cache.forget(entries)
        self.cache.remember(entries)

    @rule(choice=st.integers(0, 100))
    def distrust(self, choice: int) -> None:
        blocks = sorted(self.truth)[choice % max(1, len(self.truth)) :][:1]
        gone = with_descendants(self.cache, blocks)
        bases = [self.truth[block] for block in blocks]
        assert {entry.block for entry in gone} == {
            block
            for block, (scope, text) in self.truth.items()
            if any((scope, text[: len(base)]) == (base_scope, base) for base_scope, base in bases)
        }

    @rule(scope=scopes, tokens=texts)
    def find(self, scope: HashScope, tokens: tuple[int, ...]) -> None:
        blocks = [self._block_of(scope, tokens[:end]) for end in range(1, len(tokens) + 1)]
        packed, hashes = pack_tokens(tokens), self._hashes(tokens)
        found = [entry.block for entry in self.cache.find(scope, packed, hashes)]
        assert found == blocks[: (*blocks, None).index(None)]
        scattered = self.cache.find_scattered(scope, packed, hashes)
        assert [None if entry is None else entry.block for entry in scattered] == blocks

    def _reachable(self) -> set[BlockId]:
        """By trying each cached text as the end of a hit."""
        reachable: set[BlockId] = set()
        for scope, text in self.truth.values():
            first = 0 if self.BEHIND is None else max(0, len(text) - self.BEHIND)
            needed = [self._block_of(scope, text[:end]) for end in range(first + 1, len(text) + 1)]
            if None not in needed:
                reachable.update(block for block in needed if block is not None)
        return reachable

    @invariant()
    def indexes_agree(self) -> None:
        self.cache.check()
        assert {entry.block for entry in self.cache.all_entries()} == set(self.truth)
        assert {entry.block for entry in stranded(self.cache)} == set(self.truth) - self._reachable()


class WindowCacheMachine(CacheMachine):
    BEHIND = 2


@pytest.mark.parametrize("machine", [CacheMachine, WindowCacheMachine])
def test_colliding_hashes_never_give_another_prompts_block(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [CacheMachine, WindowCacheMachine])
def test_colliding_hashes_never_give_another_prompts_block_in_long_histories(
    machine: type[CacheMachine],
) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=400, stateful_step_count=60, deadline=None)
    )
