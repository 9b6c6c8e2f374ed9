"""Thresholds and their derivations."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.step import StepCoefficients, StepShape
from ridgeline_roofline.decisions.admission_reserve import admission_reserve_blocks
from ridgeline_roofline.decisions.chunk_budget import ChunkFacts, chunk_budget_tokens

MODEL = StepCoefficients(
    base_ms=5.0,
    per_row_ms=0.25,
    per_context_token_ms=0.001,
    per_prefill_token_ms=0.125,
    per_prefill_context_ms=0.0,
)
FACTS = ChunkFacts(
    decode_rows=8, context_tokens=4_000, max_step_tokens=512, min_chunk_tokens=16, tpot_target_ms=30.0
)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        # 5 + 8 x 0.25 + 4 = 11 ms for the rows; 19 ms are left, at 0.125 ms a token.
        pytest.param({}, 152, id="what-fits-below-the-target"),
        pytest.param({"tpot_target_ms": 11.0}, 16, id="the-floor-when-nothing-fits"),
        pytest.param({"tpot_target_ms": 1_000.0}, 504, id="the-ceiling-when-all-fits"),
        pytest.param({"tpot_target_ms": None}, 504, id="no-target-no-cut"),
        pytest.param({"decode_rows": 0, "context_tokens": 0}, 512, id="nobody-to-disturb"),
        pytest.param({"decode_rows": 500}, 12, id="the-step-is-full-of-rows"),
        pytest.param({"decode_rows": 600}, 0, id="more-rows-than-a-step-holds"),
    ],
)
def test_the_chunk_budget(changes: dict[str, object], tokens: int) -> None:
    assert chunk_budget_tokens(MODEL, replace(FACTS, **changes)).value == tokens


def test_a_chunk_deep_in_a_prompt_is_smaller() -> None:
    model = replace(MODEL, per_prefill_context_ms=1e-4)
    shallow = chunk_budget_tokens(model, FACTS).value
    deep = chunk_budget_tokens(model, replace(FACTS, chunk_context_tokens=4_000)).value
    assert 16 <= deep < shallow < 152


@given(st.integers(1, 64), st.integers(0, 50_000), st.floats(1.0, 200.0), st.integers(1, 300))
def test_a_cut_chunk_keeps_the_step_below_the_target_unless_it_is_the_floor(
    rows: int, context: int, target_ms: float, floor: int
) -> None:
    facts = replace(
        FACTS, decode_rows=rows, context_tokens=context, tpot_target_ms=target_ms, min_chunk_tokens=floor
    )
    tokens = chunk_budget_tokens(MODEL, facts).value
    assert 0 < tokens <= 512 - rows
    step_ms = MODEL.predict_ms(StepShape(rows, context, tokens, tokens * tokens // 2))
    assert step_ms <= target_ms or tokens <= floor


def test_the_derivation_names_the_numbers() -> None:
    found = chunk_budget_tokens(MODEL, FACTS).derivation
    for number in ("152", "8 rows", "4000 tokens", "11.00 ms", "30.00 ms", "floor 16", "ceiling 504"):
        assert number in found
    assert "nothing decodes" in chunk_budget_tokens(MODEL, replace(FACTS, decode_rows=0)).derivation


def test_the_reserve_is_a_block_for_each_running_sequence_and_none_for_an_empty_engine() -> None:
    assert admission_reserve_blocks(0).value == 0
    assert admission_reserve_blocks(12).value == 12
    assert "12 blocks" in admission_reserve_blocks(12).derivation
