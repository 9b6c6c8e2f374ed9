"""Several choices of one prompt: one prefill, blocks shared, texts as if each ran alone."""

from collections.abc import Callable
from typing import Any

import pytest
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import FinishReason
from ridgeline_testing.fake_executor import expected_output, kv_group

MakeBench = Callable[..., Any]
DRAWN = SamplingParams(max_tokens=24, temperature=1.0, seed=4)


def _prompt(length: int) -> tuple[int, ...]:
    return tuple((11 * index) % 40 for index in range(length))


@pytest.mark.parametrize("caching", [pytest.param(True, id="with-cache"), pytest.param(False, id="without")])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 40])
def test_each_choice_is_what_it_would_be_alone(make_bench: MakeBench, length: int, caching: bool) -> None:
    bench = make_bench({"prefix_cache": caching, "max_step_tokens": 20, "min_chunk_tokens": 20})
    key = bench.submit("a", _prompt(length), DRAWN, choices=4)
    bench.run()
    outputs = [bench.output(key, choice) for choice in range(4)]
    assert outputs == [expected_output(_prompt(length), DRAWN, seed=4, choice=choice) for choice in range(4)]
    assert len(set(outputs)) == 4


def test_the_prompt_is_computed_once_for_all_choices(make_bench: MakeBench) -> None:
    bench = make_bench({"prefix_cache": False}, groups=(kv_group(0), kv_group(1, block_tokens=32)))
    key = bench.submit("a", _prompt(40), DRAWN, choices=3)
    bench.step(2)
    assert bench.rows_of_plan(0) == [(0, 40)]
    assert sorted(bench.rows_of_plan(1)) == [(39, 1), (39, 1), (40, 1)]
    copies = bench.executor.plans[1].copies
    assert len(copies) == 4
    assert len({(copy.group, copy.target) for copy in copies}) == 4
    bench.run()
    assert bench.finish(key, 1).counts.cached_tokens == 39


def test_nothing_is_copied_where_the_fork_begins_on_a_block(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.submit("a", _prompt(33), DRAWN, choices=2)
    bench.step(2)
    assert bench.executor.plans[1].copies == ()
    assert (32, 1) in bench.rows_of_plan(1)


def test_choices_run_in_turn_where_the_batch_is_too_small(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 1})
    key = bench.submit("a", _prompt(20), DRAWN, choices=3)
    bench.run()
    for choice in range(3):
        assert bench.output(key, choice) == expected_output(_prompt(20), DRAWN, seed=4, choice=choice)


def test_each_choice_of_a_retry_goes_on_after_what_it_had_emitted(make_bench: MakeBench) -> None:
    bench = make_bench()
    whole = [expected_output(_prompt(20), DRAWN, seed=4, choice=choice) for choice in range(3)]
    emitted = (whole[0][:5], (), whole[2][:1])
    key = bench.submit("a", _prompt(20), DRAWN, choices=3, emitted=emitted)
    bench.run()
    for choice in range(3):
        assert emitted[choice] + bench.output(key, choice) == whole[choice]


def test_cancelling_ends_every_choice_once(make_bench: MakeBench) -> None:
    bench = make_bench()
    key = bench.submit("a", _prompt(20), DRAWN, choices=3)
    bench.step(3)
    bench.engine.cancel(key)
    bench.run()
    assert [bench.finish(key, choice).reason for choice in range(3)] == [FinishReason.CANCELLED] * 3
