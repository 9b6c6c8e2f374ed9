"""Choosing tokens in C, against the sampler's definition, on each width of vector."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.sampler_oracle import choose, kept_weights
from ridgeline_kernels.cpu import CpuOps, CpuTokens, DrawColumns

VOCABS = [1, 2, 31, 513, 1024, 5001]
NEUTRAL = SamplingParams(max_tokens=8)
CUTS = [
    pytest.param(NEUTRAL, id="all"),
    pytest.param(replace(NEUTRAL, top_k=40), id="top-k"),
    pytest.param(replace(NEUTRAL, top_p=0.9), id="top-p"),
    pytest.param(replace(NEUTRAL, top_p=0.9999), id="top-p-near-1"),
    pytest.param(replace(NEUTRAL, min_p=0.1), id="min-p"),
    pytest.param(replace(NEUTRAL, top_k=100, top_p=0.5, min_p=0.01, temperature=0.6), id="all-cuts"),
]


WIDTHS = ["native", *(pytest.param(f"{lanes} lanes", marks=pytest.mark.long) for lanes in (16, 4))]
"""The reference is torch's own, and held by the sampler's tests."""

pytestmark = pytest.mark.parametrize("ops", WIDTHS, indirect=True)


@pytest.fixture
def tokens(ops: CpuOps) -> CpuTokens:
    return ops.tokens or pytest.skip("NO C COMPILER HERE")


def columns_of(sampling: SamplingParams, uniforms: np.ndarray) -> DrawColumns:
    rows = len(uniforms)
    return DrawColumns(
        temperature=np.full(rows, sampling.temperature, dtype=np.float32),
        top_k=np.full(rows, sampling.top_k, dtype=np.int64),
        top_p=np.full(rows, sampling.top_p, dtype=np.float64),
        min_p=np.full(rows, sampling.min_p, dtype=np.float64),
        uniform=uniforms,
    )


@pytest.mark.parametrize("sampling", CUTS)
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("coarse", [False, True])
def test_the_choice_is_the_definitions(
    tokens: CpuTokens, vocab: int, sampling: SamplingParams, coarse: bool
) -> None:
    random = np.random.default_rng(vocab)
    logits = (random.standard_normal((16, vocab)) * 4).astype(np.float32)
    if coarse:
        logits = np.round(logits)  # many ties, at each boundary
    logits[3, vocab // 2 :] = -np.inf
    logits[3, 0] = 0.0
    uniforms = np.concatenate([[0.0, 1 - 2.0**-24], random.random(14)])
    best = logits.max(axis=1)
    columns = columns_of(sampling, uniforms)
    found = tokens.draw(torch.from_numpy(logits), torch.from_numpy(best), np.arange(16), columns)
    wanted = [choose(kept_weights(row, sampling), u) for row, u in zip(logits, uniforms, strict=True)]
    assert found.tolist() == wanted


def test_only_the_rows_asked_for_are_drawn_and_a_row_with_a_fault_gives_token_0(tokens: CpuTokens) -> None:
    logits = torch.full((4, 40), -50.0)
    logits[0, 7], logits[2, 9], logits[3, 11] = 9.0, torch.nan, 9.0
    columns = columns_of(NEUTRAL, np.array([0.5, 0.5, 0.5]))
    best = torch.tensor([9.0, torch.nan, 9.0])
    assert tokens.draw(logits, best, np.array([3, 2, 0]), columns).tolist() == [11, 0, 7]


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("coarse", [False, True])
def test_the_most_likely_come_by_logit_then_id_with_the_logarithm_of_the_sum(
    tokens: CpuTokens, vocab: int, coarse: bool
) -> None:
    logits = (np.random.default_rng(vocab).standard_normal((6, vocab)) * 30).astype(np.float32)
    if coarse:
        logits = np.round(logits / 20)
    count = min(vocab, 20)
    ids, normalisers = tokens.most_likely(torch.from_numpy(logits), np.array([5, 0, 3]), count)
    picked = logits[[5, 0, 3]].astype(np.float64)
    np.testing.assert_array_equal(ids, np.argsort(-picked, axis=1, kind="stable")[:, :count])
    wanted = torch.from_numpy(picked).logsumexp(dim=1, keepdim=True)
    torch.testing.assert_close(normalisers, wanted, rtol=1e-15, atol=1e-14)


def test_what_does_not_fit_is_refused_by_name(tokens: CpuTokens) -> None:
    logits, best = torch.zeros(2, 8), torch.zeros(1)
    columns = columns_of(NEUTRAL, np.array([0.5]))
    with pytest.raises(InvariantError, match="rows 2 to 2 of 2 rows"):
        tokens.draw(logits, best, np.array([2]), columns)
    with pytest.raises(InvariantError, match="logits must be"):
        tokens.draw(logits.double(), best, np.array([0]), columns)
    with pytest.raises(InvariantError, match="a column of 2 rows has shape"):
        tokens.draw(logits, torch.zeros(2), np.array([0, 1]), columns)
    with pytest.raises(InvariantError, match="9 most likely tokens of 8"):
        tokens.most_likely(logits, np.array([0]), 9)
