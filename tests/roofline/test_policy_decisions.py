"""What the scheduler asks of the step model: batch, order, shares, backlog, preemption."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_roofline.decisions.backlog import BacklogFacts, backlog_tokens
from ridgeline_roofline.decisions.batch_cap import BatchCapFacts, batch_cap
from ridgeline_roofline.decisions.batching_gain import continuous_gain
from ridgeline_roofline.decisions.chunk_budget import ChunkFacts, chunk_budget_tokens, gap_bound_ms
from ridgeline_roofline.decisions.fair_share import FairShareFacts, token_costs
from ridgeline_roofline.decisions.kv_share import KVShareFacts, batch_kv_tokens, batch_rows_beside
from ridgeline_roofline.decisions.preemption import (
    PreemptionFacts,
    PreemptionKind,
    preemption_choice,
)
from ridgeline_roofline.decisions.prefill_cost import decode_ms, prefill_ms
from ridgeline_roofline.decisions.prefill_order import PrefillOrderFacts, overtaking_ratio

MODEL = StepCoefficients(
    base_ms=10.0,
    per_row_ms=0.25,
    per_context_token_ms=0.001,
    per_prefill_token_ms=0.125,
    per_prefill_context_ms=0.0001,
)
CAP = BatchCapFacts(mean_context_tokens=250, pool_tokens=100_000, slots=256, tpot_target_ms=30.0)
CHUNK = ChunkFacts(
    decode_rows=8, context_tokens=2_000, max_step_tokens=512, min_chunk_tokens=64, tpot_target_ms=15.0
)
SHARE = KVShareFacts(
    interactive_rows=10,
    interactive_context_tokens=2_500,
    batch_mean_context_tokens=750,
    pool_tokens=50_000,
    tpot_target_ms=30.0,
)
VICTIM = PreemptionFacts(
    victim_tokens=400, kept_tokens=100, swap_bytes=1_000_000, copy_bytes_per_ms=100_000.0, wait_ms=90.0
)


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        # 10 + 0.5 x B ms.
        pytest.param({}, 40, id="what-stays-within-the-target"),
        pytest.param({"tpot_target_ms": 30.4}, 40, id="not-one-more-than-fits"),
        pytest.param({"mean_context_tokens": 750}, 20, id="longer-contexts-fewer-rows"),
        pytest.param({"slots": 16}, 16, id="no-more-than-slots"),
        pytest.param({"pool_tokens": 2_600}, 10, id="no-more-than-the-pool-holds"),
        pytest.param({"pool_tokens": 100}, 1, id="at-least-one"),
        pytest.param({"tpot_target_ms": None}, 256, id="no-target-no-cap"),
        pytest.param({"tpot_target_ms": 10.4}, 256, id="a-target-that-one-row-misses-caps-nothing"),
        pytest.param({"tpot_target_ms": 10.5}, 1, id="a-target-that-one-row-just-meets"),
        pytest.param({"mean_context_tokens": 0}, 79, id="an-empty-context-counts-as-one-token"),
    ],
)
def test_the_batch_cap(changes: dict[str, object], rows: int) -> None:
    assert batch_cap(MODEL, replace(CAP, **changes)).value == rows


@given(
    st.floats(0.5, 20.0),
    st.floats(0.0, 1.0),
    st.floats(1e-6, 1e-3),
    st.integers(1, 4_000),
    st.floats(1.0, 99.0),
)
def test_no_other_batch_within_the_target_has_a_higher_goodput(
    base_ms: float, row_ms: float, context_ms: float, context: int, target_ms: float
) -> None:
    model = StepCoefficients(base_ms, row_ms, context_ms, 0.0, 0.0)
    facts = replace(CAP, mean_context_tokens=context, tpot_target_ms=target_ms, slots=64)
    limit = min(64, facts.pool_tokens // context)

    def goodput(rows: int) -> float:
        step_ms = decode_ms(model, rows, rows * context)
        return rows / step_ms if step_ms <= target_ms else 0.0

    best = max(goodput(rows) for rows in range(1, limit + 1))
    cap = batch_cap(model, facts).value
    assert goodput(cap) == pytest.approx(best)
    assert best > 0.0 or cap == limit


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        pytest.param(StepCoefficients(0.0, 0.0, 0.0, 0.05, 0.0), 256, id="decode-takes-no-time"),
        pytest.param(StepCoefficients(0.0, 0.1, 0.0, 0.05, 0.0), 256, id="a-step-has-no-fixed-part"),
        pytest.param(StepCoefficients(0.0, 0.3, 0.0, 0.05, 0.0), 100, id="nor-here-but-a-target-is-met"),
    ],
)
def test_of_equally_good_batches_the_largest_is_the_cap(model: StepCoefficients, rows: int) -> None:
    assert batch_cap(model, replace(CAP, tpot_target_ms=30.0)).value == rows


class FakeBentModel:
    """Rows beyond 32 fall out of some cache: each costs more than the one before."""

    def predict_ms(self, shape: StepShape) -> float:
        return 10.0 + 0.1 * shape.decode_rows + 0.01 * max(0, shape.decode_rows - 32) ** 2


def test_where_steps_grow_faster_than_batches_the_cap_is_below_what_the_target_allows() -> None:
    model, facts = FakeBentModel(), replace(CAP, tpot_target_ms=30.0)
    cap = batch_cap(model, facts).value
    fitting = [rows for rows in range(1, 257) if model.predict_ms(StepShape(rows)) <= 30.0]
    assert 32 < cap < max(fitting)
    assert cap == max(fitting, key=lambda rows: rows / model.predict_ms(StepShape(rows)))


def test_the_batch_cap_names_the_hyperbola() -> None:
    found = batch_cap(MODEL, CAP).derivation
    for number in (
        "40 rows",
        "10.00 + 0.5000 x B",
        "250 tokens",
        "30.00 ms",
        "at 20;",
        "slots hold 256",
        "400",
    ):
        assert number in found
    assert "misses" in batch_cap(MODEL, replace(CAP, tpot_target_ms=10.4)).derivation


def test_the_floor_of_a_chunk_yields_as_the_prompt_before_it_grows() -> None:
    # 14 ms of rows, 1 ms left: 8 tokens fit. The floor of 64 takes 8.2 ms at the start: a bound of 22.2 ms.
    assert gap_bound_ms(MODEL, CHUNK).value == pytest.approx(22.2048)
    found = [
        chunk_budget_tokens(MODEL, replace(CHUNK, chunk_context_tokens=depth)).value
        for depth in (0, 1_000, 10_000, 100_000)
    ]
    assert found == [64, 36, 16, 16]


@given(st.integers(0, 60_000), st.integers(16, 300), st.floats(14.0, 60.0))
def test_no_chunk_but_a_granule_makes_a_gap_past_the_bound(depth: int, floor: int, target_ms: float) -> None:
    facts = replace(CHUNK, chunk_context_tokens=depth, min_chunk_tokens=floor, tpot_target_ms=target_ms)
    tokens = chunk_budget_tokens(MODEL, facts).value
    step_ms = MODEL.predict_ms(StepShape(8, 2_000, tokens, tokens * depth + tokens * tokens // 2))
    assert step_ms <= gap_bound_ms(MODEL, facts).value + 1e-9 or tokens == 16


def test_a_gap_bound_that_is_set_replaces_the_derived_one_and_both_are_shown() -> None:
    facts = replace(CHUNK, gap_bound_ms=18.0)
    # 14 ms of rows: 4 ms buy 31 tokens.
    assert chunk_budget_tokens(MODEL, facts).value == 31
    found = chunk_budget_tokens(MODEL, facts).derivation
    assert "18.00 ms, as set" in found
    assert "22.20 ms" in found


def test_what_the_step_already_computes_counts_against_target_floor_and_ceiling() -> None:
    easy = replace(CHUNK, tpot_target_ms=30.0)
    alone = chunk_budget_tokens(MODEL, easy).value
    beside = replace(easy, planned_tokens=100, planned_context_tokens=5_000)
    # A little more than the rest: two prompts do not attend to each other.
    assert (alone, chunk_budget_tokens(MODEL, beside).value) == (122, 23)
    assert "8 rows over 2000 tokens beside 100 prompt tokens take 27.00 ms" in (
        chunk_budget_tokens(MODEL, beside).derivation
    )
    assert chunk_budget_tokens(MODEL, replace(CHUNK, planned_tokens=50)).value == 14
    assert chunk_budget_tokens(MODEL, replace(CHUNK, planned_tokens=64)).value == 0
    full = replace(CHUNK, tpot_target_ms=None, planned_tokens=500)
    assert chunk_budget_tokens(MODEL, full).value == 512 - 8 - 500


@pytest.mark.parametrize(
    ("tokens", "target_ms", "ratio"),
    [
        # 1,000 tokens take 125 + 50 = 175 ms.
        pytest.param(1_000, None, 1.0, id="no-target"),
        pytest.param(1_000, 525.0, 2.0, id="the-longest-is-just-on-time"),
        pytest.param(1_000, 262.5, 0.5, id="a-tight-target"),
        pytest.param(1_000, 175.0, 1.0, id="the-longest-misses-it-anyway"),
    ],
)
def test_how_long_a_prompt_may_be_overtaken(tokens: int, target_ms: float | None, ratio: float) -> None:
    found = overtaking_ratio(MODEL, PrefillOrderFacts(tokens, target_ms))
    assert found.value == pytest.approx(ratio)
    assert f"{ratio:.2f} x" in found.derivation
    assert "175 ms" in found.derivation


@given(st.integers(1, 2_000), st.integers(0, 5_000), st.integers(1, 300), st.integers(0, 5_000))
def test_token_costs_add_up_to_what_the_step_model_says(
    tokens: int, start: int, rows: int, context: int
) -> None:
    costs = token_costs(MODEL, FairShareFacts(batch_rows=rows, reference_tokens=1_024)).value
    assert costs.prefill_ms(tokens, start) == pytest.approx(
        prefill_ms(MODEL, tokens, start=start), rel=1e-3, abs=1e-3
    )
    step_ms = decode_ms(MODEL, rows, rows * context)
    assert rows * costs.decode_ms(context) == pytest.approx(step_ms, rel=1e-6)


def test_an_output_token_weighs_more_than_a_prompt_token_and_the_weight_can_be_set() -> None:
    derived = token_costs(MODEL, FairShareFacts(batch_rows=20, reference_tokens=1_000))
    # 0.25 + 1 + 10 / 20 ms against 0.125 + 0.1 ms.
    assert "output weight = 7.78 prompt tokens" in derived.derivation
    forced = token_costs(MODEL, FairShareFacts(batch_rows=20, reference_tokens=1_000, output_weight=2.0))
    assert forced.value.decode_ms(1_000) == pytest.approx(2.0 * forced.value.prefill_ms(1, 1_000))
    assert "2.00 prompt tokens, as set; derived 7.78" in forced.derivation


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        # 10 + 2.5 + 2.5 = 15 ms; 15 ms are left, at 1 ms a row of 750 tokens.
        pytest.param({}, 11_250, id="what-the-target-leaves"),
        pytest.param({"batch_mean_context_tokens": 250}, 7_500, id="short-rows-cost-more-a-token"),
        pytest.param({"tpot_target_ms": 15.5}, 0, id="not-even-one-row"),
        pytest.param({"interactive_rows": 0}, 50_000, id="nobody-to-disturb"),
        pytest.param({"tpot_target_ms": None}, 50_000, id="no-target"),
        pytest.param({"tpot_target_ms": 1_000.0}, 49_500, id="whole-rows-of-the-pool"),
    ],
)
def test_the_kv_of_the_batch_class(changes: dict[str, object], tokens: int) -> None:
    assert batch_kv_tokens(MODEL, replace(SHARE, **changes)).value == tokens


def test_the_batch_share_names_what_interactive_rows_take() -> None:
    found = batch_kv_tokens(MODEL, SHARE).derivation
    for number in ("11250 tokens", "10 interactive rows", "15.00 ms", "30.00 ms", "15 batch rows of 750"):
        assert number in found


@given(
    st.integers(0, 40), st.integers(0, 300), st.integers(0, 100), st.integers(0, 2_000), st.floats(5.0, 60.0)
)
def test_batch_rows_beside_a_chunk_keep_the_step_within_the_target(
    rows: int, chunk: int, batch: int, mean: int, target_ms: float
) -> None:
    planned = StepShape(rows, rows * 500, chunk, chunk * chunk // 2)

    def step_ms(more: int) -> float:
        return MODEL.predict_ms(
            replace(planned, decode_rows=rows + more, context_tokens=planned.context_tokens + more * mean)
        )

    found = batch_rows_beside(MODEL, planned, rows=batch, mean_context_tokens=mean, target_ms=target_ms)
    assert found == 0 or step_ms(found) <= target_ms
    assert found == batch or step_ms(found + 1) > target_ms


def test_a_ttft_target_becomes_a_backlog() -> None:
    easy = replace(CHUNK, tpot_target_ms=22.5, min_chunk_tokens=16)
    found = backlog_tokens(MODEL, BacklogFacts(easy, ttft_target_ms=2_000.0))
    # 14 ms of rows; 8.5 ms buy a chunk of 66 tokens, a step of 22.47 ms.
    assert found.value.tokens_per_ms == pytest.approx(66 / 22.4678, rel=1e-4)
    assert found.value.tokens == 5_875
    assert found.value.drain_ms(5_875) == pytest.approx(2_000.0, rel=1e-3)
    for number in ("5875 tokens", "chunks of 66", "22.47 ms", "2000 ms"):
        assert number in found.derivation


def test_a_deep_prompt_in_front_makes_the_backlog_smaller() -> None:
    easy = replace(CHUNK, tpot_target_ms=30.0)
    shallow = backlog_tokens(MODEL, BacklogFacts(easy, 1_000.0)).value.tokens
    deep = backlog_tokens(
        MODEL, BacklogFacts(replace(easy, chunk_context_tokens=3_000), 1_000.0)
    ).value.tokens
    assert deep < 0.5 * shallow


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        # 300 tokens behind 100: 37.5 + 7.5 ms; 20 ms of copies; 90 ms of waiting.
        pytest.param({}, PreemptionKind.SWAP, id="copies-are-cheapest"),
        pytest.param({"copy_bytes_per_ms": 40_000.0}, PreemptionKind.RECOMPUTE, id="slow-copies"),
        pytest.param({"swap_bytes": None}, PreemptionKind.RECOMPUTE, id="a-full-host"),
        pytest.param({"copy_bytes_per_ms": None}, PreemptionKind.RECOMPUTE, id="copies-not-measured"),
        pytest.param({"wait_ms": 5.0}, PreemptionKind.WAIT, id="another-ends-soon"),
        pytest.param({"kept_tokens": 390}, PreemptionKind.RECOMPUTE, id="the-cache-keeps-nearly-all"),
        pytest.param(
            {"wait_ms": 0.0, "kept_tokens": 400}, PreemptionKind.RECOMPUTE, id="ties-go-to-recompute"
        ),
    ],
)
def test_the_cheapest_way_out_of_a_full_pool(changes: dict[str, object], kind: PreemptionKind) -> None:
    found = preemption_choice(MODEL, replace(VICTIM, **changes))
    assert found.value is kind
    assert found.derivation.startswith(f"{kind.value}: ")


def test_a_preemption_shows_all_its_prices() -> None:
    found = preemption_choice(MODEL, VICTIM).derivation
    for number in ("300 of 400 tokens", "45.00 ms", "1000000 bytes", "20.00 ms", "90.00 ms"):
        assert number in found
    bare = preemption_choice(MODEL, replace(VICTIM, swap_bytes=None, wait_ms=None)).derivation
    assert "host has no room" in bare
    assert "nobody else runs on" in bare
    assert (
        "no copy was measured" in preemption_choice(MODEL, replace(VICTIM, copy_bytes_per_ms=None)).derivation
    )


@pytest.mark.parametrize(
    ("lengths", "batch", "gain"),
    [
        pytest.param([50], 8, 1.0, id="equal-lengths-gain-nothing"),
        pytest.param([1, 99], 1, 1.0, id="a-batch-of-one-gains-nothing"),
        pytest.param([0 + 2, 10], 2, (0.25 * 2 + 0.75 * 10) / 6, id="two-lengths-two-rows"),
        pytest.param([1] * 9 + [101], 1_000, 101 / 11, id="a-large-batch-always-has-a-long-one"),
    ],
)
def test_the_gain_of_continuous_batching(lengths: list[int], batch: int, gain: float) -> None:
    assert continuous_gain(lengths, batch=batch).value == pytest.approx(gain)


def test_the_gain_equals_a_simulation_of_static_batches() -> None:
    random = Random(5)
    lengths = [random.randint(1, 400) for _ in range(60)]
    batches = [[random.choice(lengths) for _ in range(12)] for _ in range(4_000)]
    simulated = 12 * sum(max(each) for each in batches) / sum(sum(each) for each in batches)
    assert continuous_gain(lengths, batch=12).value == pytest.approx(simulated, rel=0.02)


@pytest.mark.parametrize(("lengths", "batch"), [([], 4), ([5], 0)])
def test_a_gain_needs_lengths_and_a_batch(lengths: list[int], batch: int) -> None:
    with pytest.raises(ValueError, match=f"{len(lengths)} lengths and a batch of {batch}"):
        continuous_gain(lengths, batch=batch)
