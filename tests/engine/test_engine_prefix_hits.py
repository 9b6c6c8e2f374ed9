"""What a prompt that was seen before saves, and what may never be shared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ridgeline_contracts.blockhash import HashScope, block_hashes
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.kv_events import KVCleared, KVEvicted, KVSnapshot, KVStored
from ridgeline_testing.fake_executor import expected_output, kv_group

MakeBench = Callable[..., Any]
GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPT = tuple((5 * index) % 40 for index in range(37))


def test_a_hit_saves_whole_blocks_but_never_the_last_token(bench: Any) -> None:
    first = bench.submit("first", PROMPT[:32], GREEDY)
    bench.run()
    again = bench.submit("again", PROMPT[:32], GREEDY)
    longer = bench.submit("longer", PROMPT[:33], GREEDY)
    bench.run()
    assert bench.finish(first).counts.cached_tokens == 0
    assert bench.finish(again).counts.cached_tokens == 16
    assert bench.finish(longer).counts.cached_tokens == 32
    assert bench.output(again) == bench.output(first)
    assert bench.finish(again).counts.computed_tokens == 16 + 7
    assert bench.engine.metrics().cached_tokens == 48


def test_the_output_of_one_turn_is_hit_by_the_next(bench: Any) -> None:
    first = bench.submit("first", PROMPT, replace(GREEDY, max_tokens=30))
    bench.run()
    turn = (*PROMPT, *bench.output(first), 1, 2)
    second = bench.submit("second", turn, GREEDY)
    bench.run()
    # 66 of 67 tokens have KV: four whole blocks.
    assert bench.finish(second).counts.cached_tokens == 64
    assert bench.output(second) == expected_output(turn, GREEDY)


def test_hits_need_an_equal_prefix_in_every_group(make_bench: MakeBench) -> None:
    bench = make_bench(groups=(kv_group(0), kv_group(1, block_tokens=48)))
    prompt = PROMPT * 2
    bench.submit("first", prompt, GREEDY)
    bench.run()
    again = bench.submit("again", prompt, GREEDY)
    bench.run()
    assert bench.finish(again).counts.cached_tokens == 48


def test_a_hit_ends_on_a_block_of_every_group(make_bench: MakeBench) -> None:
    bench = make_bench(groups=(kv_group(0, block_tokens=48), kv_group(1, block_tokens=32)))
    prompt = (PROMPT * 3)[:60]
    bench.submit("first", prompt, GREEDY)
    bench.run()
    again = bench.submit("again", prompt, GREEDY)
    bench.run()
    # One group has 48 tokens and the other 32: there is no length at which both can begin but none.
    assert bench.finish(again).counts.cached_tokens == 0
    assert bench.output(again) == expected_output(prompt, GREEDY)


@pytest.mark.parametrize(
    ("salt", "cached"), [pytest.param(b"a", 32, id="same-salt"), pytest.param(b"b", 0, id="another-salt")]
)
def test_hits_do_not_cross_salts(bench: Any, salt: bytes, cached: int) -> None:
    bench.submit("first", PROMPT, GREEDY, salt=b"a")
    bench.run()
    key = bench.submit("second", PROMPT, GREEDY, salt=salt)
    bench.run()
    assert bench.finish(key).counts.cached_tokens == cached


def test_a_cleared_cache_is_not_hit(bench: Any) -> None:
    bench.submit("first", PROMPT, GREEDY)
    bench.run()
    bench.engine.clear_prefix_cache()
    bench.engine.check()
    key = bench.submit("second", PROMPT, GREEDY)
    bench.run()
    assert bench.finish(key).counts.cached_tokens == 0


def test_kv_events_name_the_blocks_by_the_contracts_hash(make_bench: MakeBench) -> None:
    bench = make_bench(blocks=4)
    bench.submit("first", PROMPT, GREEDY, salt=b"s")
    bench.run()
    hashes = block_hashes(HashScope(b"s", "w"), PROMPT)
    (stored,) = bench.engine.kv_events.after(0).stored
    assert stored.block_hashes == tuple(hashes)
    bench.submit("second", PROMPT[::-1], GREEDY)
    bench.run()
    changes = [event.change for event in bench.engine.kv_events.after(1)]
    assert KVEvicted((hashes[1],), stored.group) in changes
    assert any(isinstance(change, KVStored) for change in changes)
    bench.engine.clear_prefix_cache()
    assert bench.engine.kv_events.after(bench.engine.kv_events.sequence - 1)[0].change == KVCleared()
    assert bench.engine.kv_events.after(0) == KVSnapshot(bench.engine.kv_events.sequence, ())


def test_what_is_not_computed_yet_is_not_hit(make_bench: MakeBench) -> None:
    bench = make_bench({"max_step_tokens": 16, "min_chunk_tokens": 16, "policy": "fcfs"})
    prompt = (PROMPT * 2)[:64]
    slow = bench.submit("slow", prompt, GREEDY)
    bench.step(2)
    # 32 tokens of the first are computed: the other may have these, and none of those that come.
    scheduler: Any = bench.engine._scheduler
    (running,) = scheduler.running
    assert running.computed_tokens == 32
    assert len(bench.engine.kv_events.after(0).stored[0].block_hashes) == 2
    fast = bench.submit("fast", (*prompt, 1), GREEDY)
    bench.run()
    assert bench.output(slow) == expected_output(prompt, GREEDY)
    assert bench.output(fast) == expected_output((*prompt, 1), GREEDY)
