"""The batched sampler against the oracle, row by row: random logits with ties, mixed parameters, several
steps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps
from ridgeline_engine.executors.torch_executor.sampler import Sampler
from ridgeline_engine.sampler_oracle import SamplerRow, sample_row
from ridgeline_engine.seam import Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_testing.sampler_cases import CASES, NEUTRAL, STEPS, VOCAB, Case, admit_all, assert_same, step

WIDE_VOCAB = 6000


@settings(max_examples=100, deadline=None)
@given(cases=st.lists(CASES, min_size=1, max_size=5))
def test_each_row_gets_what_the_oracle_chooses_for_it_alone(token_ops: TokenOps, cases: list[Case]) -> None:
    sampler = Sampler(vocab_tokens=VOCAB, max_batch=8, device=torch.device("cpu"), token_ops=token_ops)
    rows = [case.row for case in cases]
    admit_all(sampler, rows)
    for number in range(STEPS):
        logits = np.stack([case.logits[number] for case in cases])
        found = step(sampler, logits, rows)
        with np.errstate(invalid="ignore"):
            expected = [sample_row(one, row) for one, row in zip(logits, rows, strict=True)]
        for got, want in zip(found, expected, strict=True):
            assert_same(got, want)
        if any(one.token is None for one in found):
            return  # a row that faulted is not run again
        rows = [
            replace(row, output=(*row.output, one.token))
            for row, one in zip(rows, found, strict=True)
            if one.token is not None
        ]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    top_p=st.sampled_from([0.5, 0.9, 0.999]),
    top_k=st.sampled_from([0, 300]),
)
def test_a_wide_vocabulary_agrees_whether_the_nucleus_is_narrow_or_most_of_it(
    token_ops: TokenOps, seed: int, top_p: float, top_k: int
) -> None:
    random = np.random.default_rng(seed)
    # Rows from peaked to nearly flat: the last ones need the whole row sorted.
    widths = np.float32([[6.0], [2.0], [0.5], [0.01]])
    logits = random.standard_normal((4, WIDE_VOCAB)).astype(np.float32) * widths
    sampling = replace(NEUTRAL, temperature=0.8, top_p=top_p, top_k=top_k)
    rows = [SamplerRow(sampling, seed + number, 0, (), ()) for number in range(4)]
    sampler = Sampler(vocab_tokens=WIDE_VOCAB, max_batch=8, device=torch.device("cpu"), token_ops=token_ops)
    admit_all(sampler, rows)
    for found, one, row in zip(step(sampler, logits, rows), logits, rows, strict=True):
        assert_same(found, sample_row(one, row))


def test_greedy_takes_the_lowest_id_of_a_tie_and_faults_only_the_row_that_is_not_finite() -> None:
    greedy = replace(NEUTRAL, temperature=0.0)
    rows = [SamplerRow(greedy, 0, 0, (), ()) for _ in range(5)]
    logits = np.zeros((5, VOCAB), dtype=np.float32)
    logits[1, [9, 30]] = 2.0
    logits[2, 5] = np.nan
    logits[3, 5] = np.inf
    logits[4] = -np.inf
    sampler = Sampler(vocab_tokens=VOCAB, max_batch=8, device=torch.device("cpu"))
    admit_all(sampler, rows)
    found = step(sampler, logits, rows)
    assert [one.token for one in found] == [0, 9, None, None, None]
    assert [bool(one.fault) for one in found] == [False, False, True, True, True]


def test_penalty_state_is_held_for_penalised_slots_alone_and_reused_clean() -> None:
    penalised = replace(NEUTRAL, temperature=0.0, frequency_penalty=2.0)
    sampler = Sampler(vocab_tokens=VOCAB, max_batch=8, device=torch.device("cpu"))
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 3] = 1.0

    def owner(generation: int, sampling: SamplingParams, **more: Any) -> SlotAdmit:
        return SlotAdmit(SlotId(0), Generation(generation), sampling, 0, 0, (1, 2), **more)

    def token() -> int | None:
        plan = [RowPlan(SlotId(0), Generation(1), (0,), 0, 1, 0)]
        return sampler.sample(torch.from_numpy(logits.copy()), plan, {}).read()[0].token

    sampler.admit(owner(1, penalised))
    assert [token(), token()] == [3, 0]
    sampler.release(SlotId(0))
    sampler.admit(owner(2, replace(NEUTRAL, temperature=0.0)))
    assert [token(), token()] == [3, 3]
    sampler.release(SlotId(0))
    sampler.admit(owner(3, penalised))
    assert token() == 3


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_the_most_likely_tokens_come_by_logit_and_then_by_id(token_ops: TokenOps, count: int) -> None:
    logits = np.random.default_rng(2).integers(0, 6, size=(5, VOCAB)).astype(np.float32)
    logits[4] = 1.0
    logits[3, :60] = -np.inf
    rows = np.array([4, 0, 3, 1])
    expected = np.argsort(-logits[rows], axis=-1, kind="stable")[:, :count]
    ids, normalisers = token_ops.most_likely(torch.from_numpy(logits), rows, count)
    np.testing.assert_array_equal(ids.numpy(), expected)
    wanted = np.log(np.exp(logits[rows].astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(normalisers.squeeze(1).numpy(), wanted, rtol=1e-15)


def test_penalties_are_kept_over_more_tokens_than_were_reserved() -> None:
    penalised = replace(NEUTRAL, temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.3)
    row = SamplerRow(penalised, 0, 0, (1, 2, 3), ())
    sampler = Sampler(vocab_tokens=VOCAB, max_batch=8, device=torch.device("cpu"))
    admit_all(sampler, [row])
    logits = np.random.default_rng(1).standard_normal((1, VOCAB)).astype(np.float32)
    for _ in range(300):
        (found,) = step(sampler, logits, [row])
        assert found.token == sample_row(logits[0], row).token
        row = replace(row, output=(*row.output, found.token or 0))
