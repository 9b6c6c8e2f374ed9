"""Who runs in a step, with how many tokens, and who has to go when blocks run out."""

from collections.abc import Callable
from typing import Any

import pytest
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.request import FinishReason, PriorityClass
from ridgeline_testing.fake_executor import expected_output

LONG = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
STEPS = StepCoefficients(1.0, 0.5, 0.0, 0.125, 0.0)
MakeBench = Callable[..., Any]


def _prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + 7 * index) % 40 for index in range(length))


@pytest.mark.parametrize(
    ("prompt_tokens", "chunk", "rows"),
    [
        pytest.param(1, 8, [(0, 1)], id="one-token"),
        pytest.param(7, 8, [(0, 7)], id="one-less-than-a-chunk"),
        pytest.param(8, 8, [(0, 8)], id="a-chunk"),
        pytest.param(9, 8, [(0, 8), (8, 1)], id="one-more-than-a-chunk"),
        pytest.param(15, 16, [(0, 15)], id="one-less-than-a-block"),
        pytest.param(16, 16, [(0, 16)], id="a-block"),
        pytest.param(17, 16, [(0, 16), (16, 1)], id="one-more-than-a-block"),
        pytest.param(40, 8, [(0, 8), (8, 8), (16, 8), (24, 8), (32, 8)], id="many-chunks"),
    ],
)
def test_a_prompt_is_computed_in_chunks(
    make_bench: MakeBench, prompt_tokens: int, chunk: int, rows: list[tuple[int, int]]
) -> None:
    bench = make_bench({"max_step_tokens": chunk, "min_chunk_tokens": 1})
    key = bench.submit("a", _prompt(prompt_tokens), LONG)
    bench.run()
    plans = bench.executor.plans[: len(rows)]
    assert [bench.rows_of_plan(index)[0] for index in range(len(rows))] == rows
    assert [plan.rows[0].logits for plan in plans] == [0] * (len(rows) - 1) + [1]
    assert bench.output(key) == expected_output(_prompt(prompt_tokens), LONG)


def test_decode_rows_run_beside_a_chunk_that_keeps_the_step_below_the_target(make_bench: MakeBench) -> None:
    settings = {"max_step_tokens": 64, "min_chunk_tokens": 2, "tpot_target_ms": 5.0, "coefficients": STEPS}
    bench = make_bench(settings)
    bench.submit("decoding", _prompt(4), LONG)
    bench.step()
    bench.submit("long", _prompt(60, 3), LONG)
    bench.step()
    # 1 ms base, 0.5 ms a row, 0.125 ms a token: 28 tokens more fit into 5 ms.
    assert bench.rows_of_plan(1) == [(4, 1), (0, 28)]
    bench.step(2)
    assert [len(row.tokens) for row in bench.executor.plans[3].rows] == [1, 4]


def test_a_target_that_is_out_of_reach_leaves_the_least_chunk(make_bench: MakeBench) -> None:
    bench = make_bench({"min_chunk_tokens": 6, "tpot_target_ms": 0.5, "coefficients": STEPS})
    bench.submit("decoding", _prompt(4), LONG)
    bench.step()
    bench.submit("long", _prompt(20, 3), LONG)
    bench.step()
    assert bench.rows_of_plan(1) == [(4, 1), (0, 6)]


def test_without_decode_rows_a_step_is_filled_with_prompts(make_bench: MakeBench) -> None:
    bench = make_bench({"max_step_tokens": 30, "min_chunk_tokens": 1, "tpot_target_ms": 0.5})
    for index in range(3):
        bench.submit(str(index), _prompt(12, index), LONG)
    bench.step()
    assert bench.rows_of_plan(0) == [(0, 12), (0, 12), (0, 6)]


def test_the_batch_cap_holds_and_the_next_comes_when_a_slot_is_free(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 2})
    keys = [bench.submit(str(index), _prompt(5, index), LONG) for index in range(5)]
    bench.run()
    assert max(len(plan.rows) for plan in bench.executor.plans) == 2
    assert [bench.finish(key).reason for key in keys] == [FinishReason.LENGTH] * 5
    queued = [bench.finish(key).clocks.engine_queue_ms for key in keys]
    assert queued[0] == queued[1] == 0.0
    assert queued == sorted(queued)
    assert queued[2] > 0.0


def test_interactive_requests_overtake_batch_requests_that_wait(make_bench: MakeBench) -> None:
    bench = make_bench({"max_batch": 1})
    bench.submit("running", _prompt(5), LONG)
    bench.step()
    late = bench.submit("batch", _prompt(5, 1), LONG, priority=PriorityClass.BATCH)
    soon = bench.submit("interactive", _prompt(5, 2), LONG)
    bench.run()
    assert bench.finish(soon).clocks.engine_queue_ms < bench.finish(late).clocks.engine_queue_ms


def test_the_latest_arrival_is_preempted_and_nobody_notices(make_bench: MakeBench) -> None:
    sampling = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True, seed=9)
    bench = make_bench(blocks=6)
    keys = [bench.submit(str(index), _prompt(14, index), sampling) for index in range(3)]
    bench.run()
    for index, key in enumerate(keys):
        assert bench.output(key) == expected_output(_prompt(14, index), sampling, seed=9)
    preempted = [bench.finish(key).clocks.preemptions for key in keys]
    assert preempted[0] == 0
    assert preempted[2] > 0
    assert bench.engine.metrics().preemptions == sum(preempted)


def test_a_preempted_sequence_keeps_its_place_counts_and_clocks(make_bench: MakeBench) -> None:
    sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
    bench = make_bench(blocks=4)
    first = bench.submit("first", _prompt(14), sampling)
    second = bench.submit("second", _prompt(14, 1), sampling)
    bench.step()
    third = bench.submit("third", _prompt(14, 2), sampling)
    bench.run()
    finish = bench.finish(second)
    assert finish.clocks.preemptions > 0
    assert finish.clocks.engine_queue_ms == 0.0
    assert finish.counts.emitted_tokens == finish.counts.accepted_tokens == 40
    assert finish.counts.cached_tokens == 0
    assert finish.counts.computed_tokens > 14 + 39
    assert bench.finish(first).counts.computed_tokens == 14 + 39
    assert finish.clocks.engine_total_ms < bench.finish(third).clocks.engine_total_ms
    offsets = [row.first_offset for row in bench.rows if row.key == second]
    assert offsets == list(range(40))


def test_a_long_prompt_at_the_head_of_the_queue_is_not_overtaken(make_bench: MakeBench) -> None:
    sampling = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    bench = make_bench({"policy": "fcfs"}, blocks=6)
    bench.submit("running", _prompt(40), sampling)
    bench.step()
    long = bench.submit("long", _prompt(64, 1), sampling)
    short = bench.submit("short", _prompt(3, 2), sampling)
    bench.run()
    assert bench.finish(long).clocks.engine_queue_ms <= bench.finish(short).clocks.engine_queue_ms


def test_a_deadline_that_passes_in_the_queue_ends_the_request_before_its_prefill(
    make_bench: MakeBench,
) -> None:
    bench = make_bench({"max_batch": 1})
    bench.submit("running", _prompt(5), LONG)
    bench.step()
    late = bench.submit("late", _prompt(9, 1), LONG, choices=2, deadline_ms=bench.clock.now_ms + 5.0)
    bench.run()
    for choice in range(2):
        finish = bench.finish(late, choice)
        assert finish.reason is FinishReason.ERROR
        assert finish.error is not None
        assert finish.error.code == "deadline_exceeded"
        assert finish.counts.computed_tokens == 0
        assert (finish.clocks.engine_queue_ms, finish.clocks.engine_ttft_ms) == (None, None)


def test_admitted_work_is_finished_though_its_deadline_passes(make_bench: MakeBench) -> None:
    bench = make_bench(blocks=4)
    sampling = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    keys = [bench.submit(str(index), _prompt(14, index), sampling, deadline_ms=1.0) for index in range(2)]
    bench.run()
    assert bench.finish(keys[1]).clocks.preemptions > 0
    assert [bench.finish(key).reason for key in keys] == [FinishReason.LENGTH] * 2
