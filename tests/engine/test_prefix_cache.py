"""A hit is only on equal tokens behind equal tokens, whatever the hashes say."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from ridgeline_contracts.blockhash import HashScope, block_hashes, root_hash
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.ids import BlockHash
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_engine.kv_events import KVEvicted, KVStored
from ridgeline_engine.prefix_cache import CachedBlock, PrefixCache

G0 = GroupId(0)
SCOPE = HashScope(b"tenant-a", "weights-1")
TOKENS = tuple(range(48))


def _store(
    cache: PrefixCache, tokens: tuple[int, ...], *, first_block: int = 0, scope: HashScope = SCOPE
) -> None:
    parent: CachedBlock | None = None
    for index, block_hash in enumerate(block_hashes(scope, tokens, block_tokens=cache.block_tokens)):
        step = cache.block_tokens
        entry = CachedBlock(
            block_hash, BlockId(first_block + index), tokens[index * step : (index + 1) * step], scope, parent
        )
        parent = cache.store(entry)


def _hit(cache: PrefixCache, tokens: tuple[int, ...], scope: HashScope = SCOPE) -> list[int]:
    hashes = block_hashes(scope, tokens, block_tokens=cache.block_tokens)
    return [entry.block for entry in cache.find(scope, tokens, hashes)]


def test_the_longest_stored_prefix_is_hit() -> None:
    cache = PrefixCache(G0, 16)
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
    cache = PrefixCache(G0, 16)
    _store(cache, TOKENS)
    assert _hit(cache, TOKENS, other) == []
    # Not even by a query that brings this scope's hashes.
    hashes = block_hashes(SCOPE, TOKENS, block_tokens=16)
    assert cache.find(other, TOKENS, hashes) == []


def test_larger_blocks_are_indexed_by_every_kth_hash() -> None:
    cache = PrefixCache(G0, 32)
    _store(cache, TOKENS)
    assert len(cache) == 1
    assert _hit(cache, TOKENS) == [0]


def test_equal_blocks_are_indexed_once() -> None:
    cache = PrefixCache(G0, 16)
    _store(cache, TOKENS)
    _store(cache, (*TOKENS, *range(16)), first_block=10)
    assert _hit(cache, (*TOKENS, *range(16))) == [0, 1, 2, 13]
    cache.check()


def test_a_forced_collision_of_hashes_does_not_cross() -> None:
    cache = PrefixCache(G0, 16)
    same = BlockHash(b"0123456789abcdef")
    mine, theirs = tuple(range(16)), tuple(range(100, 116))
    assert cache.store(CachedBlock(same, BlockId(0), mine, SCOPE, None)) is not None
    assert cache.store(CachedBlock(same, BlockId(1), theirs, SCOPE, None)) is None
    assert [entry.block for entry in cache.find(SCOPE, mine, [same])] == [0]
    assert cache.find(SCOPE, theirs, [same]) == []
    cache.check()


def test_a_tail_is_not_hit_behind_a_head_that_took_the_hash_of_its_own() -> None:
    cache = PrefixCache(G0, 16)
    head_hash, tail_hash = BlockHash(b"h" * 16), BlockHash(b"t" * 16)
    mine, theirs, tail = tuple(range(16)), tuple(range(50, 66)), tuple(range(16, 32))
    head = cache.store(CachedBlock(head_hash, BlockId(0), mine, SCOPE, None))
    cache.store(CachedBlock(tail_hash, BlockId(1), tail, SCOPE, head))
    cache.forget([BlockId(0)])
    cache.store(CachedBlock(head_hash, BlockId(2), theirs, SCOPE, None))
    found = cache.find(SCOPE, (*theirs, *tail), [head_hash, tail_hash])
    assert [entry.block for entry in found] == [2]


def test_a_tail_is_hit_again_once_its_head_was_computed_again() -> None:
    cache = PrefixCache(G0, 16)
    _store(cache, TOKENS)
    cache.forget([BlockId(0)])
    assert _hit(cache, TOKENS) == []
    _store(cache, TOKENS[:16], first_block=9)
    assert _hit(cache, TOKENS) == [9, 1, 2]


def test_what_is_forgotten_is_told_with_its_hashes() -> None:
    cache = PrefixCache(G0, 16)
    _store(cache, TOKENS)
    hashes = block_hashes(SCOPE, TOKENS)
    assert cache.forget([BlockId(1), BlockId(7)]) == KVEvicted((hashes[1],), G0)
    assert cache.forget([BlockId(1)]) is None
    assert cache.stored() == [
        KVStored(root_hash(SCOPE), (hashes[0],), G0),
        KVStored(hashes[1], (hashes[2],), G0),
    ]


def test_a_block_that_is_not_whole_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="not whole"):
        PrefixCache(G0, 16).store(CachedBlock(BlockHash(b"x" * 16), BlockId(0), (1,), SCOPE, None))


class CacheMachine(RuleBasedStateMachine):
    """Hashes of two values only, so that nearly everything collides; the truth is kept by block."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = PrefixCache(G0, 1)
        self.truth: dict[BlockId, tuple[HashScope, tuple[int, ...]]] = {}
        self.next_block = 0

    texts = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
    scopes = st.sampled_from([SCOPE, HashScope(b"tenant-b", "weights-1")])

    def _hashes(self, tokens: tuple[int, ...]) -> list[BlockHash]:
        # The length and the last bit of the sum of a prefix: siblings collide.
        return [BlockHash(bytes([end, sum(tokens[:end]) % 2])) for end in range(1, len(tokens) + 1)]

    @rule(scope=scopes, tokens=texts)
    def store(self, scope: HashScope, tokens: tuple[int, ...]) -> None:
        parent: CachedBlock | None = None
        for index, block_hash in enumerate(self._hashes(tokens)):
            block = BlockId(self.next_block)
            self.next_block += 1
            entry = CachedBlock(block_hash, block, (tokens[index],), scope, parent)
            parent = self.cache.store(entry)
            if parent is None:
                return
            if parent is entry:
                self.truth[block] = (scope, tokens[: index + 1])

    @rule(choice=st.integers(0, 100))
    def evict(self, choice: int) -> None:
        blocks = sorted(self.truth)
        if blocks:
            self.cache.forget([blocks[choice % len(blocks)]])
            del self.truth[blocks[choice % len(blocks)]]

    @rule(scope=scopes, tokens=texts)
    def find(self, scope: HashScope, tokens: tuple[int, ...]) -> None:
        for index, entry in enumerate(self.cache.find(scope, tokens, self._hashes(tokens))):
            assert self.truth[entry.block] == (scope, tokens[: index + 1])

    @invariant()
    def indexes_agree(self) -> None:
        self.cache.check()
        assert set(self.cache.blocks()) == set(self.truth)


def test_colliding_hashes_never_give_another_prompts_block() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None)
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_colliding_hashes_never_give_another_prompts_block_in_long_histories() -> None:
    run_state_machine_as_test(
        CacheMachine, settings=settings(max_examples=400, stateful_step_count=60, deadline=None)
    )
