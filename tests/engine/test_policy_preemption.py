"""Who goes when blocks run out, and that everybody comes back."""

from collections.abc import Callable
from typing import Any

import pytest
from ridgeline_contracts.ids import TenantId
from ridgeline_contracts.kv import GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.drafting import StepDraft
from ridgeline_engine.policy.census import take_census
from ridgeline_engine.policy.preemption_log import PreemptionCause
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.seam import LaunchId
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.fake_executor import expected_output

MakeBench = Callable[..., Any]


def _prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + 7 * index) % 40 for index in range(length))


def _sampling(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("preemption", ["auto", "recompute", "swap", "wait"])
@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_that_outputs_exhaust_gives_everybody_its_text(
    make_bench: MakeBench, preemption: str, caching: bool
) -> None:
    bench = make_bench({"preemption": preemption, "prefix_cache": caching}, blocks=6)
    keys = {bench.submit(str(index), _prompt(14, index), _sampling(40)): index for index in range(4)}
    bench.run()
    for key, index in keys.items():
        assert bench.output(key) == expected_output(_prompt(14, index), _sampling(40))
    assert bench.engine.preemption_trace


def test_who_ranks_first_is_never_asked_to_go(make_bench: MakeBench) -> None:
    for preemption in ("recompute", "wait"):
        bench = make_bench({"preemption": preemption, "policy": "fcfs"}, blocks=6)
        first = bench.submit("first", _prompt(14), _sampling(60))
        for index in range(4):
            bench.submit(str(index), _prompt(14, index + 1), _sampling(40))
        bench.run()
        assert bench.finish(first).clocks.preemptions == 0
        gaps = [row.first_offset for row in bench.rows if row.key == first]
        assert gaps == list(range(60))


def test_the_one_with_least_to_lose_goes(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False, "policy": "fcfs"}, blocks=10)
    bench.submit("old", _prompt(14), _sampling(60))
    short = bench.submit("short", _prompt(10, 1), _sampling(60))
    bench.submit("long", _prompt(66, 2), _sampling(60))
    # 2 + 2 + 6 blocks, and the oldest wants a third: 29 tokens are less to lose than 85, though they are older.
    bench.step(20)
    assert [each.key for each in bench.engine.preemption_trace] == [short]
    assert "recompute 28 of 28 tokens" in bench.engine.preemption_trace[0].derivation


def test_the_youngest_goes_among_equals(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False, "policy": "fcfs"}, blocks=6)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(40)) for index in range(3)]
    bench.step(30)
    assert bench.engine.preemption_trace[0].key == keys[2]


def test_a_batch_sequence_goes_for_an_interactive_one_but_never_the_other_way(make_bench: MakeBench) -> None:
    bench = make_bench({"tpot_target_ms": None}, blocks=6)
    batch = [
        bench.submit(f"batch{index}", _prompt(14, index), _sampling(40), priority=PriorityClass.BATCH)
        for index in range(2)
    ]
    bench.step(3)
    live = bench.submit("live", _prompt(14, 5), _sampling(60))
    bench.run()
    assert bench.finish(live).clocks.preemptions == 0
    assert {each.key for each in bench.engine.preemption_trace} <= set(batch)
    assert bench.engine.preemption_trace


def test_a_batch_sequence_never_takes_an_interactive_ones_blocks(make_bench: MakeBench) -> None:
    settings = {"policy": "fcfs", "prefix_cache": False, "tpot_target_ms": None, "preemption": "recompute"}
    bench = make_bench(settings, blocks=20)
    batch = [
        bench.submit(f"batch{index}", _prompt(40 - index, index), _sampling(60), priority=PriorityClass.BATCH)
        for index in range(2)
    ]
    bench.step(2)
    # Each of them has least to lose when the batch class wants more.
    for index in range(2):
        bench.submit(f"live{index}", _prompt(4, index), _sampling(40))
    bench.step()
    pool: Any = bench.engine._scheduler.kv.pool
    pool.allocate({0: pool.counts(0).free})
    while not bench.engine.preemption_trace:
        bench.engine.step()
    assert {each.key for each in bench.engine.preemption_trace} <= set(batch)


@pytest.mark.parametrize("preemption", ["auto", "recompute", "wait"])
def test_no_interactive_sequence_goes_or_pauses_while_the_batch_class_holds_blocks(
    make_bench: MakeBench, preemption: str
) -> None:
    settings = {"policy": "fcfs", "prefix_cache": False, "tpot_target_ms": None, "preemption": preemption}
    bench = make_bench(settings, blocks=20)
    long, more = _sampling(60), _sampling(40)
    batch = bench.submit("batch", _prompt(60), long, priority=PriorityClass.BATCH)
    bench.step()
    for index in range(2):
        # Much less to lose than the batch sequence has.
        bench.submit(f"live{index}", _prompt(14 - index, index + 1), more)
    bench.step()
    pool: Any = bench.engine._scheduler.kv.pool
    pool.allocate({0: pool.counts(0).free})
    while not bench.engine.preemption_trace:
        bench.engine.step()
    first = bench.engine.preemption_trace[0]
    assert (first.key, first.kind) == (batch, PreemptionKind.RECOMPUTE)


def test_a_pause_costs_no_computation_and_is_counted_apart(make_bench: MakeBench) -> None:
    bench = make_bench({"preemption": "wait", "policy": "fcfs", "prefix_cache": False}, blocks=6)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(18 + 16 * index)) for index in range(2)]
    third = bench.submit("third", _prompt(30, 7), _sampling(30))
    bench.run()
    assert bench.engine.metrics().preemptions == 0
    log: Any = bench.engine._scheduler.log
    # A pause of many steps is told of once.
    assert log.counts == {(PreemptionCause.POOL, PreemptionKind.WAIT): 1}
    assert bench.finish(third).counts.computed_tokens == 30 + 29
    assert bench.finish(keys[1]).counts.computed_tokens == 14 + 33
    assert "wait, as set; derived" in bench.engine.preemption_trace[0].derivation


def test_when_all_would_pause_somebody_goes_after_all(make_bench: MakeBench) -> None:
    bench = make_bench({"preemption": "wait", "policy": "fcfs", "prefix_cache": False}, blocks=4)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(40)) for index in range(2)]
    bench.run()
    kinds = [each.kind for each in bench.engine.preemption_trace]
    assert PreemptionKind.RECOMPUTE in kinds
    assert [len(bench.output(key)) for key in keys] == [40, 40]


def test_the_trace_holds_numbers_and_is_bounded(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False}, blocks=4)
    for index in range(60):
        bench.submit(str(index), _prompt(14, index), _sampling(45))
    bench.run(at_most=9_000)
    trace = bench.engine.preemption_trace
    metrics = bench.engine.metrics()
    log: Any = bench.engine._scheduler.log
    assert metrics.preemptions == log.preempted
    assert len(trace) == min(256, sum(log.counts.values()))
    assert [each.at_ms for each in trace] == sorted(each.at_ms for each in trace)
    assert all(
        "to recompute" in each.derivation
        and ("ends in about" in each.derivation or "nobody else runs on" in each.derivation)
        for each in trace
    )


def test_a_preempted_sequence_comes_back_before_those_that_never_ran(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False}, blocks=4)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(30)) for index in range(2)]
    bench.step(2)
    later = bench.submit("later", _prompt(4, 9), _sampling(30))
    bench.run()
    assert bench.finish(keys[1]).clocks.preemptions > 0
    first_of_later = next(index for index, row in enumerate(bench.rows) if row.key == later)
    last_of_preempted = max(index for index, row in enumerate(bench.rows) if row.key == keys[1])
    assert first_of_later > last_of_preempted - 30


def test_a_preempted_sequence_comes_back_before_another_tenants_newcomer(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False}, blocks=4)
    busy, new = TenantId("busy"), TenantId("new")
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(30), tenant=busy) for index in range(2)]
    while not bench.engine.preemption_trace:
        bench.step()
    kept = len(bench.output(keys[1]))
    # Its tenant has had much more than the other one, whose turn it would be.
    later = bench.submit("later", _prompt(14, 9), _sampling(4), tenant=new)
    bench.run()
    assert bench.finish(keys[1]).clocks.preemptions > 0
    order = [row.key for row in bench.rows if row.key == later or row.first_offset == kept]
    assert order.index(keys[1]) < order.index(later)


def test_a_swapped_sequence_goes_on_where_it_was_without_a_prefill(make_bench: MakeBench) -> None:
    settings = {"preemption": "swap", "policy": "fcfs", "prefix_cache": False, "host_copy_bytes_per_ms": 1e6}
    bench = make_bench(settings, blocks=6, host_blocks=12)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(40)) for index in range(3)]
    bench.run()
    log: Any = bench.engine._scheduler.log
    assert set(log.counts) == {(PreemptionCause.POOL, PreemptionKind.SWAP)}
    assert [bench.finish(key).counts.computed_tokens for key in keys] == [14 + 39] * 3
    assert [bench.finish(key).counts.emitted_tokens for key in keys] == [40] * 3
    assert sum(bench.finish(key).clocks.preemptions for key in keys) == bench.engine.metrics().preemptions > 0


def test_swap_is_chosen_where_copies_are_faster_than_prefill(make_bench: MakeBench) -> None:
    for bytes_per_ms, kind in ((1e9, PreemptionKind.SWAP), (1.0, PreemptionKind.RECOMPUTE)):
        settings = {"host_copy_bytes_per_ms": bytes_per_ms, "policy": "fcfs", "prefix_cache": False}
        bench = make_bench(settings, blocks=6, host_blocks=12)
        for index in range(3):
            bench.submit(str(index), _prompt(14, index), _sampling(40))
        bench.step(40)
        assert bench.engine.preemption_trace[0].kind is kind
        assert "out and in" in bench.engine.preemption_trace[0].derivation


def test_a_full_host_falls_back_to_recomputation_and_says_so(make_bench: MakeBench) -> None:
    bench = make_bench({"preemption": "swap", "policy": "fcfs"}, blocks=6)
    for index in range(3):
        bench.submit(str(index), _prompt(14, index), _sampling(40))
    bench.run()
    assert "swap is set but not possible: recompute" in bench.engine.preemption_trace[0].derivation


def test_a_sequence_that_is_cancelled_on_the_host_leaves_nothing_there(make_bench: MakeBench) -> None:
    bench = make_bench({"preemption": "swap", "policy": "fcfs"}, blocks=6, host_blocks=12)
    keys = [bench.submit(str(index), _prompt(14, index), _sampling(40)) for index in range(3)]
    kv: Any = bench.engine._scheduler.kv
    while kv.host_counts(GroupId(0)).held == 0:
        bench.step()
    for key in keys:
        bench.engine.cancel(key)
    bench.run()
    bench.submit("another", _prompt(4), _sampling(1))
    bench.run()
    assert kv.host_counts(GroupId(0)).free == 12


def test_what_the_cache_will_keep_is_not_counted_as_lost(make_bench: MakeBench) -> None:
    settings = {"preemption": "recompute", "policy": "fcfs"}
    bench = make_bench(settings, blocks=8)
    bench.submit("old", _prompt(14), _sampling(60))
    bench.submit("ends", _prompt(14, 1), _sampling(7))
    cached = bench.submit("cached", _prompt(46, 2), _sampling(60))
    bench.step(40)
    first = bench.engine.preemption_trace[0]
    # 80 tokens, all of them stored. Another is expected to end after 7 tokens: two rows take 14 positions until then.
    assert first.key == cached
    assert "recompute 14 of 80 tokens" in first.derivation


@pytest.mark.parametrize(
    "prompt_tokens", [pytest.param(14, id="decoding"), pytest.param(90, id="prefilling")]
)
def test_a_step_counts_without_those_that_just_went(make_bench: MakeBench, prompt_tokens: int) -> None:
    settings = {"tpot_target_ms": None, "max_step_tokens": 40, "policy": "fcfs"}
    bench = make_bench(settings, blocks=40)
    bench.submit("live", _prompt(14, 5), _sampling(60))
    for index, tokens in enumerate((11, 12, prompt_tokens)):
        prompt = _prompt(tokens, index)
        bench.submit(f"batch{index}", prompt, _sampling(60), priority=PriorityClass.BATCH)
    bench.step(3)
    scheduler: Any = bench.engine._scheduler
    scheduler._room.begin(StepDraft(LaunchId(99)), bench.engine.step_model, 0.0, None)
    census = take_census(scheduler.running)
    assert [each.request.key.request_id for each in census.prefills] == ["batch2"] * (prompt_tokens > 40)
    for left in (2, 1, 0):
        assert scheduler._room.take_from_batch(census)
        assert census == take_census(scheduler.running)
        assert census.batch.rows == left
    assert not scheduler._room.take_from_batch(census)
    assert census == take_census(scheduler.running)
