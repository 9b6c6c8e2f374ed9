"""Rows for the sampler, with everything that a request may ask for, and the comparison with the oracle."""

from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.extra.numpy as arrays
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import strategies as st
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.sampler import Sampler
from ridgeline_engine.sampler_oracle import Sampled, SamplerRow
from ridgeline_engine.seam import Generation, RowPlan, SlotAdmit, SlotId

VOCAB = 70
STEPS = 3
TOKENS = st.integers(0, VOCAB - 1)
NEUTRAL = SamplingParams(max_tokens=64)


def _or_neutral(neutral: float, values: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return st.just(neutral) | values


PARAMETERS = st.builds(
    SamplingParams,
    max_tokens=st.just(64),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    temperature=_or_neutral(0.0, st.floats(0.05, 2.0)),
    top_k=st.sampled_from([0, 0, 1, 2, 7, VOCAB, VOCAB + 5]),
    top_p=_or_neutral(1.0, st.floats(0.01, 1.0)) | st.just(0.5),
    min_p=_or_neutral(0.0, st.floats(0.0, 1.0)),
    repetition_penalty=_or_neutral(1.0, st.floats(0.5, 2.0)),
    presence_penalty=_or_neutral(0.0, st.floats(-2.0, 2.0)),
    frequency_penalty=_or_neutral(0.0, st.floats(-2.0, 2.0)),
    logit_bias=st.lists(st.tuples(TOKENS, st.floats(-100, 100)), max_size=3).map(tuple),
    logprobs=st.sampled_from([None, None, 0, 1, 5, 20]),
    stop_token_ids=st.lists(TOKENS, max_size=2).map(tuple),
)
COARSE = st.integers(-6, 6).map(lambda steps: steps / 2)
"""Many equal logits, and sums of weights that are equal exactly."""
FINE = st.floats(-20, 20, width=32)
STRANGE = st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0])
LOGITS = st.sampled_from([COARSE, COARSE, FINE, STRANGE]).flatmap(
    lambda elements: arrays.arrays(np.float32, (STEPS, VOCAB), elements=elements, fill=elements)
)
MASKS = st.none() | arrays.arrays(np.bool_, (VOCAB,), elements=st.booleans())


@dataclass(frozen=True)
class Case:
    """One row over several steps."""

    logits: npt.NDArray[np.float32]
    row: SamplerRow


def packed(mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.uint32] | None:
    if mask is None:
        return None
    padded = np.zeros(-(-VOCAB // 32) * 32, dtype=np.bool_)
    padded[:VOCAB] = mask
    return np.packbits(padded, bitorder="little").view(np.uint32)


CASES = st.builds(
    Case,
    logits=LOGITS,
    row=st.builds(
        SamplerRow,
        sampling=PARAMETERS,
        seed=st.integers(0, 2**64 - 1),
        choice=st.integers(0, 3),
        prompt=st.lists(TOKENS, max_size=6).map(tuple),
        output=st.lists(TOKENS, max_size=6).map(tuple),
        eos_token_ids=st.lists(TOKENS, max_size=2).map(tuple),
        mask=MASKS.map(packed),
    ),
)


def admit_all(sampler: Sampler, rows: Sequence[SamplerRow], slots: Sequence[int] | None = None) -> None:
    """Row i goes to slots[i], or to slot i."""
    for slot, row in zip(range(len(rows)) if slots is None else slots, rows, strict=True):
        sampler.admit(
            SlotAdmit(
                SlotId(slot),
                Generation(1),
                row.sampling,
                row.seed,
                row.choice,
                row.prompt,
                row.output,
                row.eos_token_ids,
            )
        )


def step(
    sampler: Sampler,
    logits: npt.NDArray[np.float32],
    rows: Sequence[SamplerRow],
    slots: Sequence[int] | None = None,
) -> list[Sampled]:
    """One batch of rows that lie in `slots`; the sampler may overwrite what it is given."""
    places = [SlotId(slot) for slot in (range(len(rows)) if slots is None else slots)]
    plans = [
        RowPlan(slot, Generation(1), (0,), 0, 1, len(row.output))
        for slot, row in zip(places, rows, strict=True)
    ]
    masks = {slot: row.mask for slot, row in zip(places, rows, strict=True) if row.mask is not None}
    return sampler.sample(torch.from_numpy(logits.copy()), plans, masks).read()


def assert_same(found: Sampled, expected: Sampled) -> None:
    assert (found.token, found.fault) == (expected.token, expected.fault)
    assert (found.logprob is None) == (expected.logprob is None)
    if found.logprob is not None and expected.logprob is not None:
        assert found.logprob.token == expected.logprob.token
        assert found.logprob.logprob == pytest.approx(expected.logprob.logprob, abs=1e-9)
        assert [token for token, _ in found.logprob.top] == [token for token, _ in expected.logprob.top]
        values = [value for _, value in found.logprob.top]
        assert values == pytest.approx([value for _, value in expected.logprob.top], abs=1e-9)
