"""The sampler's definition, step by step."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.sampler_oracle import (
    FAULT_NO_TOKEN,
    FAULT_NOT_FINITE,
    SamplerRow,
    adjusted_logits,
    choose,
    kept_weights,
    mask_bits,
    sample_row,
    token_logprob,
)

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
DRAWN = SamplingParams(max_tokens=8, temperature=1.0)


def _row(sampling: SamplingParams, **changes: object) -> SamplerRow:
    return replace(SamplerRow(sampling, seed=5, choice=0, prompt=(0,), output=()), **changes)


def _logits(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def _kept(logits: tuple[float, ...], **changes: float) -> list[int]:
    weights = kept_weights(_logits(*logits), replace(DRAWN, **changes))
    return [int(token) for token in np.flatnonzero(weights)]


@pytest.mark.parametrize(
    ("logits", "token"),
    [
        pytest.param((1.0, 3.0, 2.0), 1, id="the-largest"),
        pytest.param((1.0, 3.0, 3.0), 1, id="ties-go-to-the-lowest-id"),
        pytest.param((-np.inf, -5.0, -np.inf), 1, id="minus-infinity-is-a-legal-logit"),
    ],
)
def test_temperature_zero_is_argmax(logits: tuple[float, ...], token: int) -> None:
    assert sample_row(_logits(*logits), _row(GREEDY)).token == token


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        pytest.param({}, [0, 1, 2, 3], id="nothing-set-keeps-all"),
        pytest.param({"top_k": 1}, [3], id="top-k-1"),
        pytest.param({"top_k": 2}, [1, 2, 3], id="ties-at-the-k-th-value-are-kept-whole"),
        pytest.param({"top_k": 9}, [0, 1, 2, 3], id="top-k-beyond-the-vocabulary"),
        pytest.param({"top_p": 0.4}, [3], id="top-p-reached-by-the-best"),
        pytest.param({"top_p": 0.7}, [1, 2, 3], id="ties-at-the-boundary-are-kept-whole"),
        pytest.param({"top_p": 0.999999}, [0, 1, 2, 3], id="top-p-near-one"),
        pytest.param({"min_p": 0.5}, [3], id="min-p"),
        pytest.param({"min_p": 0.3}, [1, 2, 3], id="min-p-is-relative-to-the-best"),
        pytest.param({"min_p": 1.0}, [3], id="min-p-1-keeps-the-best"),
        pytest.param({"top_k": 2, "top_p": 0.51}, [3], id="top-p-counts-what-top-k-kept-and-nothing-else"),
        pytest.param({"top_k": 3, "top_p": 0.999999}, [1, 2, 3], id="top-p-counts-what-top-k-kept"),
    ],
)
def test_truncation_keeps(changes: dict[str, float], kept: list[int]) -> None:
    # Probabilities are about 0.06, 0.22, 0.22, 0.5.
    assert _kept((0.0, 1.3, 1.3, 2.1), **changes) == kept


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-300, 5e-324])
def test_a_tiny_temperature_neither_overflows_nor_loses_the_best(temperature: float) -> None:
    weights = kept_weights(_logits(80.0, 90.0, -np.inf), replace(DRAWN, temperature=temperature))
    assert weights.tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"repetition_penalty": 2.0}, (1.0, -4.0, 0.5, 8.0), id="repetition-over-prompt-and-output"
        ),
        pytest.param({"presence_penalty": 1.0}, (2.0, -3.0, 0.0, 8.0), id="presence-over-output-once"),
        pytest.param({"frequency_penalty": 1.0}, (2.0, -4.0, 0.0, 8.0), id="frequency-over-output-by-count"),
        pytest.param({"logit_bias": ((3, -8.0),)}, (2.0, -2.0, 1.0, 0.0), id="bias"),
    ],
)
def test_penalties_and_bias(changes: dict[str, object], expected: tuple[float, ...]) -> None:
    row = _row(replace(GREEDY, **changes), prompt=(0, 0), output=(1, 2, 1))
    assert adjusted_logits(_logits(2.0, -2.0, 1.0, 8.0), row).tolist() == list(expected)


def test_end_and_stop_tokens_are_masked_until_min_tokens_came() -> None:
    sampling = replace(GREEDY, min_tokens=2, stop_token_ids=(2,))
    row = _row(sampling, eos_token_ids=(3,))
    logits = _logits(0.0, 1.0, 5.0, 9.0)
    assert sample_row(logits, replace(row, output=(1,))).token == 1
    assert sample_row(logits, replace(row, output=(1, 1))).token == 3


def test_the_token_mask_is_read_little_end_first() -> None:
    mask = np.array([1 << 5, 1 << 1], dtype=np.uint32)
    assert np.flatnonzero(mask_bits(mask, 40)).tolist() == [5, 33]
    logits = np.zeros(40, dtype=np.float32)
    logits[33] = 1.0
    assert sample_row(logits, _row(GREEDY, mask=mask)).token == 33


@pytest.mark.parametrize(
    ("logits", "changes", "fault"),
    [
        pytest.param((0.0, np.nan), {}, FAULT_NOT_FINITE, id="nan"),
        pytest.param((0.0, np.inf), {}, FAULT_NOT_FINITE, id="plus-infinity"),
        pytest.param((0.0, 1.0), {"mask": np.array([0], dtype=np.uint32)}, FAULT_NO_TOKEN, id="empty-mask"),
    ],
)
def test_a_row_that_cannot_be_sampled_says_why(
    logits: tuple[float, ...], changes: dict[str, object], fault: str
) -> None:
    found = sample_row(_logits(*logits), _row(GREEDY, **changes))
    assert (found.token, found.fault) == (None, fault)


@pytest.mark.parametrize(
    ("uniform", "token"),
    [
        pytest.param(0.0, 1, id="zero-skips-weightless-tokens"),
        pytest.param(0.2499, 1, id="just-below-the-first-step"),
        pytest.param(0.25, 3, id="a-step-belongs-to-the-next"),
        pytest.param(1 - 2**-24, 3, id="the-largest-uniform"),
    ],
)
def test_the_choice_walks_the_tokens_in_order_of_id(uniform: float, token: int) -> None:
    assert choose(np.array([0.0, 0.25, 0.0, 0.75, 0.0]), uniform) == token


def test_draws_follow_the_distribution() -> None:
    logits = _logits(0.0, 1.0, 2.0, 0.5)
    expected = np.exp(logits) / np.exp(logits).sum()
    tokens = [sample_row(logits, _row(DRAWN, choice=choice)).token for choice in range(4_000)]
    found = np.bincount(np.array(tokens), minlength=4) / len(tokens)
    assert np.abs(found - expected).max() < 0.03


@given(st.integers(0, 2**64 - 1), st.integers(0, 7), st.integers(0, 30))
def test_equal_addresses_give_equal_tokens_and_leave_the_logits_alone(
    seed: int, choice: int, length: int
) -> None:
    logits = np.linspace(-1, 1, 33, dtype=np.float32)
    row = _row(replace(DRAWN, top_p=0.9), seed=seed, choice=choice, output=(1,) * length)
    assert sample_row(logits, row) == sample_row(logits.copy(), row)
    assert (logits == np.linspace(-1, 1, 33, dtype=np.float32)).all()


def test_logprobs_are_of_the_raw_logits() -> None:
    sampling = replace(GREEDY, logprobs=2, logit_bias=((0, 50.0),))
    found = sample_row(_logits(0.0, np.log(3.0), 0.0), _row(sampling))
    assert found.token == 0
    assert found.logprob is not None
    assert found.logprob.logprob == pytest.approx(np.log(0.2), abs=1e-6)
    assert [token for token, _ in found.logprob.top] == [1, 0]
    assert np.exp(found.logprob.top[0][1]) == pytest.approx(0.6, abs=1e-6)


def test_zero_logprobs_names_the_chosen_token_alone() -> None:
    assert token_logprob(_logits(0.0, 0.0), 1, top=0).top == ()


def test_each_position_of_an_output_draws_anew() -> None:
    logits = np.zeros(512, dtype=np.float32)
    drawn = {sample_row(logits, _row(DRAWN, output=(1,) * length)).token for length in range(40)}
    assert len(drawn) > 30
