"""Where KV lives while a text runs: within windows, on the host and back, once for equal prompts, never stranded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from ridgeline_contracts.blockhash import HashScope, block_hashes
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.block_pool import BlockPool
from ridgeline_engine.cached_block import CachedBlock, pack_tokens
from ridgeline_engine.prefix_cache import PrefixCache
from ridgeline_engine.prefix_reach import stranded
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.seam import CopyKind
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.fake_executor import expected_output, kv_group

MakeBench = Callable[..., Any]
G0, G1 = GroupId(0), GroupId(1)
SCOPE = HashScope(b"s", "w")
WINDOWED = (kv_group(0), kv_group(1, window_tokens=40))


def _prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + 7 * index) % 40 for index in range(length))


def _sampling(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def _kv(bench: Any) -> Any:
    return bench.engine._scheduler.kv


class ListenerFailed(Exception):
    """What a listener of evictions might raise."""


def test_an_allocation_that_fails_on_the_way_leaves_every_group_as_it_was() -> None:
    failing = [True]

    def on_evict(evicted: Mapping[GroupId, Sequence[BlockId]]) -> None:
        if failing[0]:
            raise ListenerFailed

    pool = BlockPool({G0: 4, G1: 4}, on_evict=on_evict)
    for group in (G0, G1):
        blocks = pool.allocate({group: 3})[group]
        for block in blocks:
            pool.set_hittable(group, block, True)
        pool.release(group, blocks, fence=None)
    before = [pool.counts(group) for group in (G0, G1)]
    shared = [BlockId(0)]
    with pytest.raises(ListenerFailed):
        pool.acquire({G0: 2, G1: 3}, sharing={G0: shared})
    pool.check()
    assert [pool.counts(group) for group in (G0, G1)] == before
    assert pool.holders(G0, BlockId(0)) == 0
    assert all(pool.is_hittable(group, BlockId(block)) for group in (G0, G1) for block in range(3))
    failing[0] = False
    taken = pool.acquire({G0: 2, G1: 3}, sharing={G0: shared})
    # The order of eviction is what it was: tails first.
    assert taken == {G0: (3, 2), G1: (3, 2, 1)}
    pool.check()


@pytest.mark.parametrize("caching", [True, False])
def test_a_window_group_holds_no_more_than_its_window(make_bench: MakeBench, caching: bool) -> None:
    bench = make_bench({"prefix_cache": caching}, groups=WINDOWED)
    key = bench.submit("a", _prompt(100), _sampling(60))
    held = {}
    while bench.engine.has_work:
        bench.step()
        if bench.engine.has_work:
            held = {group: _kv(bench).pool.counts(group).held for group in (G0, G1)}
    # 159 tokens: 10 blocks; a query sees 40 tokens, which lie in at most 4 blocks.
    assert held == {G0: 10, G1: 4} or held == {G0: 10, G1: 3}
    assert bench.output(key) == expected_output(_prompt(100), _sampling(60))


def test_what_left_a_window_waits_for_the_launch_that_is_open(make_bench: MakeBench) -> None:
    bench = make_bench(groups=WINDOWED)
    key = bench.submit("a", _prompt(20), _sampling(80))
    seen = set()
    while bench.engine.has_work:
        while bench.executor.open_launches < 2 and bench.engine.launch():
            pass
        bench.rows += bench.engine.complete()
        quarantined = _kv(bench).pool.counts(G1).quarantined
        seen.add(quarantined)
        assert quarantined == 0 or bench.executor.open_launches == 1
    assert max(seen) > 0
    assert bench.output(key) == expected_output(_prompt(20), _sampling(80))


def test_a_hit_ends_where_a_window_before_it_is_gone(make_bench: MakeBench) -> None:
    # The window group has room for one text's window: all that stood before was evicted as the text went on.
    bench = make_bench(groups=WINDOWED, blocks={G0: 64, G1: 5})
    bench.submit("first", _prompt(160), _sampling(2))
    bench.run()
    short = bench.submit("short", _prompt(60), _sampling(9))
    bench.run()
    assert bench.finish(short).counts.cached_tokens == 0
    assert bench.output(short) == expected_output(_prompt(60), _sampling(9))


def test_a_text_through_windows_is_what_it_would_be_alone(make_bench: MakeBench) -> None:
    settings = {"max_step_tokens": 32, "min_chunk_tokens": 8}
    bench = make_bench(settings, groups=WINDOWED, blocks=14)
    keys = [bench.submit(str(index), _prompt(50, index), _sampling(50)) for index in range(3)]
    bench.run()
    for index, key in enumerate(keys):
        assert bench.output(key) == expected_output(_prompt(50, index), _sampling(50))


def test_a_hit_beside_windows_needs_the_last_window_alone(make_bench: MakeBench) -> None:
    bench = make_bench(groups=WINDOWED)
    bench.submit("first", _prompt(96), _sampling(2))
    bench.run()
    again = bench.submit("again", (*_prompt(96), 1, 2), _sampling(20))
    bench.run()
    assert bench.finish(again).counts.cached_tokens == 96
    assert bench.output(again) == expected_output((*_prompt(96), 1, 2), _sampling(20))


def _swapping(make_bench: MakeBench, **executor: Any) -> Any:
    settings = {"preemption": "swap", "policy": "fcfs", "prefix_cache": False}
    return make_bench(settings, **{"blocks": 6, "host_blocks": 12, **executor})


@pytest.mark.parametrize(
    "groups", [pytest.param((kv_group(0),), id="full"), pytest.param(WINDOWED, id="window")]
)
def test_a_swapped_sequence_goes_on_with_its_own_kv(make_bench: MakeBench, groups: Any) -> None:
    bench = _swapping(make_bench, groups=groups)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(60)) for index in range(3)]
    bench.run()
    for index, key in enumerate(keys):
        assert bench.output(key) == expected_output(_prompt(14, index), _sampling(60))
        # Nothing is computed twice.
        assert bench.finish(key).counts.computed_tokens == 14 + 59
    assert {each.kind for each in bench.engine.preemption_trace} == {PreemptionKind.SWAP}
    copies = [copy.kind for plan in bench.executor.plans for copy in plan.copies]
    assert copies.count(CopyKind.SWAP_OUT) == copies.count(CopyKind.SWAP_IN) > 0
    counts = _kv(bench).host_counts(groups[0].group)
    assert (counts.held, counts.free) == (0, counts.total)


def test_a_block_is_copied_out_and_given_to_another_in_one_step(make_bench: MakeBench) -> None:
    bench = _swapping(make_bench)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(60)) for index in range(3)]
    bench.run()
    given_away = [
        copy.source
        for plan in bench.executor.plans
        for copy in plan.copies
        if copy.kind is CopyKind.SWAP_OUT
        and any(copy.source in append.blocks for append in plan.appends if append.group == copy.group)
    ]
    assert given_away
    for index, key in enumerate(keys):
        assert bench.output(key) == expected_output(_prompt(14, index), _sampling(60))


def test_host_blocks_wait_for_the_launch_that_copies_them(make_bench: MakeBench) -> None:
    bench = _swapping(make_bench)
    for index in range(3):
        bench.submit(str(index), _prompt(14, index), _sampling(60))
    kv, waited = _kv(bench), 0
    while bench.engine.has_work:
        launched = bench.engine.launch()
        plan = bench.executor.plans[-1]
        if launched and any(copy.kind is CopyKind.SWAP_IN for copy in plan.copies):
            counts = kv.host_counts(G0)
            assert counts.quarantined >= sum(copy.kind is CopyKind.SWAP_IN for copy in plan.copies)
            waited += 1
        bench.rows += bench.engine.complete()
        assert kv.host_counts(G0).quarantined == 0
    assert waited > 0


def test_what_was_never_swapped_cannot_come_back(make_bench: MakeBench) -> None:
    bench = _swapping(make_bench)
    bench.submit("a", _prompt(14), _sampling(9))
    bench.step()
    (running,) = bench.engine._scheduler.running
    with pytest.raises(InvariantError, match="not on the host"):
        _kv(bench).swap_in(running, running.slot)


def test_a_sequence_that_is_cancelled_on_the_host_leaves_no_block_there(make_bench: MakeBench) -> None:
    bench = _swapping(make_bench)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(60)) for index in range(3)]
    while not _kv(bench).host_counts(G0).held:
        bench.step()
    for key in keys:
        bench.engine.cancel(key)
    bench.run()
    bench.submit("later", _prompt(5), _sampling(3))
    bench.run()
    assert _kv(bench).host_counts(G0).held == 0
    assert _kv(bench).host_counts(G0).quarantined == 0


def test_equal_prompts_that_come_together_are_computed_once(make_bench: MakeBench) -> None:
    bench = make_bench()
    prompt = _prompt(60)
    keys = [bench.submit(str(index), (*prompt, index), _sampling(8)) for index in range(4)]
    bench.run()
    for index, key in enumerate(keys):
        assert bench.output(key) == expected_output((*prompt, index), _sampling(8))
    # Three whole blocks of the others are hits; the first computed all 61 tokens.
    assert [bench.finish(key).counts.cached_tokens for key in keys] == [0, 48, 48, 48]


def test_who_waits_for_a_prompt_that_is_cancelled_computes_it_itself(make_bench: MakeBench) -> None:
    bench = make_bench({"max_step_tokens": 16, "min_chunk_tokens": 16})
    first = bench.submit("first", (*_prompt(60), 1), _sampling(8))
    second = bench.submit("second", (*_prompt(60), 2), _sampling(8))
    bench.step(2)
    bench.engine.cancel(first)
    bench.run()
    assert bench.output(second) == expected_output((*_prompt(60), 2), _sampling(8))


@pytest.mark.parametrize("ends_first", ["live", "batch"])
def test_no_block_is_stranded_whoever_stored_it_and_whoever_ends_first(
    make_bench: MakeBench, ends_first: str
) -> None:
    bench = make_bench({"max_step_tokens": 16, "min_chunk_tokens": 16, "tpot_target_ms": None}, blocks=16)
    prompt, kv = _prompt(64), _kv(bench)
    longer, shorter = _sampling(60), _sampling(4)
    batch = shorter if ends_first == "batch" else longer
    live = shorter if ends_first == "live" else longer
    bench.submit("batch", (*prompt, 1), batch, priority=PriorityClass.BATCH)
    bench.step()
    # It does not wait for one that ranks behind it: both compute the same blocks, and one of each is indexed.
    bench.submit("live", (*prompt, 2), live)
    bench.run()
    # Now room is needed, block by block.
    for index in range(14):
        bench.submit(f"other{index}", _prompt(16 + 16 * (index % 3), index + 5), _sampling(2), salt=b"other")
        while bench.engine.has_work:
            bench.step()
            assert kv.stranded_bytes() == 0


def test_nothing_is_stored_behind_a_block_that_was_evicted() -> None:
    cache = PrefixCache(G0, 16, blocks=8)
    hashes = block_hashes(SCOPE, range(48))
    blocks = [
        CachedBlock(block_hash, BlockId(index), pack_tokens(range(16 * index, 16 * index + 16)), SCOPE, None)
        for index, block_hash in enumerate(hashes)
    ]
    head, middle, tail = blocks
    middle.parent, tail.parent = head, middle
    assert cache.store(head) is head
    assert cache.store(middle) is middle
    cache.forget([middle])
    assert cache.store(tail) is None
    assert stranded(cache) == []
    cache.check()
