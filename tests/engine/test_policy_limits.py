"""Batch cap, batch share, order of prompts, backlog: what the engine does with its thresholds."""

from collections.abc import Callable
from typing import Any

import pytest
from ridgeline_contracts.errors import Overloaded, SettingsError
from ridgeline_contracts.ids import TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.policy.overrides import PolicyOverrides
from ridgeline_engine.request import PriorityClass
from ridgeline_engine.settings import EngineSettings
from ridgeline_roofline.decisions.decision import Decision
from ridgeline_roofline.decisions.fair_share import TokenCosts

MakeBench = Callable[..., Any]
ROWS = StepCoefficients(1.0, 0.5, 0.0, 0.0625, 0.0)
"""1 ms a step, 0.5 ms a row, 16 prompt tokens a ms."""
LONG = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def _prompt(length: int, start: int = 0) -> tuple[int, ...]:
    return tuple((start + 7 * index) % 40 for index in range(length))


def _most_rows(bench: Any) -> int:
    return max(len(plan.rows) for plan in bench.executor.plans)


def test_no_more_interactive_sequences_run_than_the_batch_cap(make_bench: MakeBench) -> None:
    # 1 + 0.5 x B within 3 ms: B = 4.
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS})
    for index in range(7):
        bench.submit(str(index), _prompt(5, index), LONG)
    bench.step(3)
    assert bench.engine.metrics().running == 4
    assert "batch cap = 4 rows" in bench.engine.derivations()[2]
    bench.run()
    assert _most_rows(bench) == 4


def test_the_batch_cap_can_be_set_and_both_numbers_are_shown(make_bench: MakeBench) -> None:
    overrides = PolicyOverrides(batch_cap=6)
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS, "overrides": overrides})
    for index in range(7):
        bench.submit(str(index), _prompt(5, index), LONG)
    bench.step(3)
    assert bench.engine.metrics().running == 6
    assert "batch_cap = 6, as set; derived batch cap = 4 rows" in bench.engine.derivations()[2]


def test_the_batch_class_alone_has_no_cap(make_bench: MakeBench) -> None:
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS})
    for index in range(7):
        bench.submit(str(index), _prompt(5, index), LONG, priority=PriorityClass.BATCH)
    bench.run()
    assert _most_rows(bench) == 7


def test_rows_beyond_a_cap_that_sank_pause_and_those_that_had_most_pause_first(make_bench: MakeBench) -> None:
    context = StepCoefficients(1.0, 0.0, 0.0625, 0.0625, 0.0)
    bench = make_bench({"tpot_target_ms": 8.0, "coefficients": context, "max_step_tokens": 64})
    # 7 ms buy 112 tokens of context: 7 rows of 16 tokens, but only 3 of 17 to 32.
    early = bench.submit("early", _prompt(11), SamplingParams(max_tokens=40, ignore_eos=True))
    bench.step(6)
    for index in range(4):
        bench.submit(str(index), _prompt(9, index), SamplingParams(max_tokens=40, ignore_eos=True))
    bench.step(7)
    before = len(bench.output(early))
    bench.step(2)
    assert [len(plan.rows) for plan in bench.executor.plans[-3:]] == [5, 3, 3]
    assert len(bench.output(early)) == before
    bench.run()
    assert len(bench.output(early)) == 40


def test_batch_sequences_give_way_when_interactive_ones_come(make_bench: MakeBench) -> None:
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS})
    for index in range(4):
        bench.submit(
            f"batch{index}",
            _prompt(30, index),
            SamplingParams(max_tokens=60, ignore_eos=True),
            priority=PriorityClass.BATCH,
        )
    bench.step(4)
    for index in range(3):
        bench.submit(f"live{index}", _prompt(5, 9 + index), LONG)
    bench.step(4)
    # 1 + 0.5 x (3 + r) within 3 ms: one batch row beside three interactive ones.
    assert bench.engine.metrics().running == 4
    trace = bench.engine.preemption_trace
    assert [(each.cause.value, str(each.key.request_id)) for each in trace] == [
        ("batch_share", f"batch{index}") for index in (3, 2, 1)
    ]
    assert "to recompute" in trace[0].derivation
    bench.run()


def test_a_share_that_is_set_holds_instead(make_bench: MakeBench) -> None:
    overrides = PolicyOverrides(batch_kv_tokens=1_000_000)
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS, "overrides": overrides})
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    for index in range(4):
        bench.submit(f"batch{index}", _prompt(30, index), sampling, priority=PriorityClass.BATCH)
    bench.step(4)
    for index in range(3):
        bench.submit(f"live{index}", _prompt(5, 9 + index), LONG)
    bench.step(4)
    assert len(bench.executor.plans[-1].rows) == 7
    assert bench.engine.preemption_trace == ()
    assert "batch_kv_tokens = 1000000, as set; derived batch KV" in bench.engine.derivations()[3]


def test_batch_rows_pause_for_the_chunk_of_an_interactive_prompt(make_bench: MakeBench) -> None:
    settings = {"tpot_target_ms": 4.0, "coefficients": ROWS, "min_chunk_tokens": 16, "max_step_tokens": 64}
    bench = make_bench(settings, max_batch=16)
    bench.submit("live", _prompt(5), SamplingParams(max_tokens=60, ignore_eos=True))
    bench.step(2)
    for index in range(3):
        bench.submit(f"batch{index}", _prompt(4, index), LONG, priority=PriorityClass.BATCH)
    bench.step(3)
    assert len(bench.executor.plans[-1].rows) == 4
    bench.submit("late", _prompt(60, 5), LONG)
    bench.step()
    # 1.5 ms for the row that decodes; the chunk takes the other 2.5 ms, nothing is left for the batch.
    assert [len(row.tokens) for row in bench.executor.plans[-1].rows] == [1, 40]


def test_a_short_prompt_passes_a_long_one_that_runs_already(make_bench: MakeBench) -> None:
    for policy, first in (("shortest", True), ("fcfs", False)):
        settings = {"policy": policy, "max_step_tokens": 16, "coefficients": ROWS, "tpot_target_ms": None}
        bench = make_bench(settings, blocks=64)
        long = bench.submit("long", _prompt(200), LONG)
        bench.step()
        short = bench.submit("short", _prompt(10, 3), LONG)
        bench.run()
        ttft = {key: bench.finish(key).clocks.engine_ttft_ms for key in (long, short)}
        assert (ttft[short] < ttft[long] / 3) is first


def test_a_tenant_that_had_less_is_admitted_first(make_bench: MakeBench) -> None:
    for policy, waits in (("fcfs", True), ("fair", False)):
        bench = make_bench({"policy": policy, "max_batch": 2})
        many = [
            bench.submit(f"many{index}", _prompt(20, index), LONG, tenant=TenantId("many"))
            for index in range(8)
        ]
        bench.step(2)
        few = bench.submit("few", _prompt(20, 30), LONG, tenant=TenantId("few"))
        bench.run()
        later = sum(
            bench.finish(key).clocks.engine_queue_ms > bench.finish(few).clocks.engine_queue_ms
            for key in many
        )
        assert later == (0 if waits else 6)


def test_recomputation_after_a_preemption_is_not_charged(make_bench: MakeBench) -> None:
    charged = {}
    for blocks in (64, 6):
        bench = make_bench({"prefix_cache": False}, blocks=blocks)
        sampling = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
        for index in range(3):
            bench.submit(str(index), _prompt(14, index), sampling, tenant=TenantId("one"))
        bench.submit("other", _prompt(14, 9), SamplingParams(max_tokens=1), tenant=TenantId("other"))
        scheduler: Any = bench.engine._scheduler
        account = next(each for each in scheduler.accounts.active() if each.tenant == "one")
        # A price of 1 for each token, whatever it is: the sum counts the tokens that were charged.
        price = Decision(TokenCosts(1.0, 0.0, 1.0, 0.0), "")
        scheduler.thresholds.token_costs = lambda *_, price=price: price
        bench.run()
        charged[blocks] = account.served_ms
        assert (bench.engine.metrics().preemptions > 0) is (blocks == 6)
    # The last token of an output is never run.
    assert charged == {64: 3 * (14 + 39), 6: 3 * (14 + 39)}


def test_a_request_that_would_miss_the_first_token_target_is_refused_until_the_backlog_is_done(
    make_bench: MakeBench,
) -> None:
    settings = {"ttft_target_ms": 20.0, "tpot_target_ms": None, "max_step_tokens": 48, "coefficients": ROWS}
    bench = make_bench(settings)
    # Steps of 48 tokens take 4 ms: 240 tokens in 20 ms.
    bench.submit("first", _prompt(200), LONG)
    bench.submit("fits", _prompt(40, 1), LONG)
    with pytest.raises(Overloaded, match=r"240 prompt tokens wait and 60 more.*backlog = 240") as refused:
        bench.submit("late", _prompt(60, 2), LONG)
    assert refused.value.retry_after_ms == 5
    bench.submit("patient", _prompt(60, 2), LONG, priority=PriorityClass.BATCH)
    bench.step(2)
    bench.submit("late", _prompt(60, 2), LONG)
    bench.run()


def test_a_prompt_that_no_target_could_bear_is_let_in_when_nothing_waits(make_bench: MakeBench) -> None:
    bench = make_bench({"ttft_target_ms": 1.0, "coefficients": ROWS})
    key = bench.submit("huge", _prompt(300), LONG)
    bench.run()
    assert len(bench.output(key)) == 12


def test_a_backlog_can_be_set(make_bench: MakeBench) -> None:
    settings = {"ttft_target_ms": 20.0, "coefficients": ROWS, "overrides": PolicyOverrides(backlog_tokens=50)}
    bench = make_bench(settings)
    bench.submit("first", _prompt(30), LONG)
    with pytest.raises(Overloaded, match="backlog_tokens = 50, as set; derived backlog"):
        bench.submit("second", _prompt(30, 1), LONG)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param(
            {"preemption": "never"}, "preemption='never' is unknown.*auto, recompute, swap", id="kind"
        ),
        pytest.param({"ttft_target_ms": 0.0}, "ttft_target_ms=0.0: give more than 0", id="target"),
        pytest.param({"host_copy_bytes_per_ms": -1.0}, "host_copy_bytes_per_ms=-1.0", id="copies"),
    ],
)
def test_a_bad_setting_stops_the_start(make_bench: MakeBench, changes: dict[str, object], error: str) -> None:
    with pytest.raises(SettingsError, match=error):
        make_bench(changes)


@pytest.mark.parametrize("name", ["batch_cap", "gap_bound_ms", "output_weight", "backlog_tokens"])
def test_an_override_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name}=0: give more than 0"):
        PolicyOverrides(**{name: 0})
    assert PolicyOverrides(batch_kv_tokens=0, overtaking_ratio=0.0)
    with pytest.raises(SettingsError, match="batch_kv_tokens=-1: give 0 or more"):
        PolicyOverrides(batch_kv_tokens=-1)


def test_tenants_take_turns_unless_another_policy_is_set() -> None:
    assert EngineSettings(eos_token_ids=()).policy == "fair"


@pytest.mark.parametrize(
    "machine",
    [
        pytest.param({"blocks": 8, "max_batch": 8}, id="all-blocks-are-held"),
        pytest.param({"blocks": 64, "max_batch": 4}, id="all-slots-are-held"),
    ],
)
def test_an_interactive_request_starts_at_once_though_the_batch_class_holds_all(
    make_bench: MakeBench, machine: dict[str, int]
) -> None:
    bench = make_bench({"tpot_target_ms": None}, **machine)
    sampling = SamplingParams(max_tokens=60, ignore_eos=True)
    batch = [
        bench.submit(f"batch{index}", _prompt(14, index), sampling, priority=PriorityClass.BATCH)
        for index in range(4)
    ]
    bench.step(6)
    live = bench.submit("live", _prompt(40, 9), LONG)
    bench.step(2)
    assert bench.output(live)
    assert {each.cause.value for each in bench.engine.preemption_trace} == {"batch_share"}
    bench.run()
    assert [len(bench.output(key)) for key in batch] == [60] * 4
    assert bench.finish(batch[0]).clocks.preemptions == 0


def test_a_batch_sequence_waits_while_its_class_has_its_share(make_bench: MakeBench) -> None:
    bench = make_bench({"tpot_target_ms": 3.0, "coefficients": ROWS})
    long = SamplingParams(max_tokens=60, ignore_eos=True)
    bench.submit("live", _prompt(5), long)
    bench.step(2)
    for index in range(4):
        bench.submit(f"batch{index}", _prompt(30, index), long, priority=PriorityClass.BATCH)
    bench.step(4)
    # 1 + 0.5 x (1 + 1 for the next + r) within 3 ms: two batch rows are let in, and none of them has to go again.
    assert bench.engine.metrics().running == 1 + 2
    assert bench.engine.preemption_trace == ()
    bench.run()
