"""What the policies are for, on a virtual clock: ratios between policies over the same traffic."""

from functools import cache

import pytest
from ridgeline_contracts.step import StepShape
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.scenarios.cases import SCENARIOS
from ridgeline_testing.scenarios.driver import MODEL, Outcome
from ridgeline_testing.scenarios.table import table


@cache
def _outcomes(name: str) -> dict[str, Outcome]:
    return SCENARIOS[name]().outcomes()


def _figures(name: str) -> dict[str, dict[str, float]]:
    measure = SCENARIOS[name]().measure
    return {variant: measure(each) for variant, each in _outcomes(name).items()}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_request_of_every_scenario_gets_all_its_tokens(name: str) -> None:
    for outcome in _outcomes(name).values():
        for each in outcome.seen.values():
            assert each.finished
            assert len(each.token_times_ms) == each.arrival.output_tokens


def test_a_cut_chunk_bounds_the_gap_that_a_long_prompt_causes() -> None:
    figures = _figures("long_prompt")
    uncut, cut = figures["fcfs, chunks not cut"], figures["fcfs, TPOT 30 ms"]
    assert uncut["gap_max_ms"] > 4 * cut["gap_max_ms"]
    assert cut["gap_max_ms"] <= 30.0
    # The long prompt pays: its chunks are smaller, so that it takes more steps.
    assert uncut["long_ttft_ms"] < cut["long_ttft_ms"] < 1.5 * uncut["long_ttft_ms"]


def test_short_prompts_pass_the_long_one_at_hardly_any_cost_to_it() -> None:
    figures = _figures("long_prompt")
    fcfs, shortest = figures["fcfs, TPOT 30 ms"], figures["shortest first, TPOT 30 ms"]
    assert fcfs["late_ttft_p50_ms"] > 20 * shortest["late_ttft_p50_ms"]
    assert shortest["long_ttft_ms"] < 1.05 * fcfs["long_ttft_ms"]


def test_the_guard_holds_the_gap_where_the_floor_alone_lets_it_grow_with_the_prompt() -> None:
    figures = _figures("long_prompt")
    off, on = figures["TPOT 12 ms, guard off"], figures["TPOT 12 ms, guard on"]
    rows = StepShape(10, 10 * 360)
    floor_ms = MODEL.predict_ms(StepShape(10, 10 * 360, 256, 128 * 256)) - MODEL.predict_ms(rows)
    bound_ms = MODEL.predict_ms(rows) + floor_ms
    assert off["gap_max_ms"] > 1.4 * bound_ms
    assert on["gap_max_ms"] <= bound_ms
    assert on["long_ttft_ms"] < 1.1 * off["long_ttft_ms"]


def test_long_documents_of_one_tenant_do_not_hold_up_the_chat_of_another() -> None:
    figures = _figures("two_tenants")
    assert figures["fcfs"]["chat_ttft_p95_ms"] > 10 * figures["fair"]["chat_ttft_p95_ms"]
    assert figures["fair"]["document_ttft_p95_ms"] < 1.3 * figures["fcfs"]["document_ttft_p95_ms"]
    assert figures["fair"]["total_ms"] < 1.03 * figures["fcfs"]["total_ms"]


def test_a_flood_of_equal_requests_is_held_back_by_turns_and_by_no_order_of_lengths() -> None:
    figures = _figures("flood")
    assert figures["shortest"]["calm_ttft_p95_ms"] == pytest.approx(
        figures["fcfs"]["calm_ttft_p95_ms"], rel=0.1
    )
    assert figures["fcfs"]["calm_ttft_p95_ms"] > 5 * figures["fair"]["calm_ttft_p95_ms"]
    assert figures["fair"]["total_ms"] == pytest.approx(figures["fcfs"]["total_ms"], rel=0.02)


def test_the_batch_share_keeps_interactive_tokens_on_target_and_costs_the_batch_little() -> None:
    figures = _figures("batch_class")
    off, on = figures["no share"], figures["share of the KV"]
    assert off["live_on_target_ratio"] == 0.0
    assert on["live_on_target_ratio"] == 1.0
    assert on["batch_end_ms"] < 1.1 * off["batch_end_ms"]
    causes = {each.cause.value for each in _outcomes("batch_class")["share of the KV"].preemptions}
    assert causes == {"batch_share"}


def test_who_pays_when_outputs_exhaust_the_pool() -> None:
    figures, outcomes = _figures("exhausted_pool"), _outcomes("exhausted_pool")
    kinds = {name: {each.kind for each in outcome.preemptions} for name, outcome in outcomes.items()}
    assert kinds["recompute"] == {PreemptionKind.RECOMPUTE}
    assert kinds["swap"] == {PreemptionKind.SWAP}
    assert PreemptionKind.WAIT in kinds["wait"]
    recompute, swap, wait = (figures[name] for name in ("recompute", "swap", "wait"))
    # A swap is paid in copies alone: each prompt is computed once, and all is done first.
    assert swap["prefilled_tokens"] == 48 * 500
    assert swap["total_ms"] < 0.97 * min(recompute["total_ms"], wait["total_ms"])
    # A recomputation is paid by few: the 95th percentile waits longest in mid-stream, the median hardly does.
    assert recompute["worst_gap_p95_ms"] > 1.05 * max(swap["worst_gap_p95_ms"], wait["worst_gap_p95_ms"])
    # A pause holds its blocks: fewer tokens are computed twice, but the median request waits in mid-stream.
    assert swap["prefilled_tokens"] < wait["prefilled_tokens"] < recompute["prefilled_tokens"]
    assert wait["worst_gap_p50_ms"] > 1.5 * max(recompute["worst_gap_p50_ms"], swap["worst_gap_p50_ms"])
    best_ms = min(found["total_ms"] for found in figures.values())
    assert figures["auto"]["total_ms"] < 1.02 * best_ms
    assert PreemptionKind.SWAP in kinds["auto"]


def test_the_table_has_a_row_a_policy_and_a_column_a_figure() -> None:
    assert table("T", {"a": {"x_ms": 1.5, "n": 2.0}, "b": {"x_ms": 1_234.5, "n": 3.0}}).splitlines() == [
        "**T**",
        "",
        "| policy | x_ms | n |",
        "| --- | --- | --- |",
        "| a | 1.50 | 2 |",
        "| b | 1,234 | 3 |",
    ]
