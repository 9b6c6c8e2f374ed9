"""One batch of rows that want different things: each gets what the oracle chooses for it alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps, TorchTokens
from ridgeline_engine.executors.torch_executor.sampler import Sampler
from ridgeline_engine.sampler_oracle import SamplerRow, sample_row
from ridgeline_engine.seam import Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_kernels.cpu import load_cpu_ops

DRAWN = SamplingParams(max_tokens=64)
WANTED = (
    replace(DRAWN, temperature=0.0),
    DRAWN,
    replace(DRAWN, top_k=3),
    replace(DRAWN, top_p=0.3),
    replace(DRAWN, min_p=0.6),
    replace(DRAWN, temperature=1e-300),
    replace(DRAWN, temperature=5e-324, top_p=0.5, min_p=0.1),
    replace(DRAWN, temperature=0.2, repetition_penalty=1.3),
    replace(DRAWN, logit_bias=((7, 50.0),), logprobs=3),
    replace(DRAWN, temperature=2.0, top_k=40, top_p=0.9, min_p=0.05, presence_penalty=1.0),
)
VOCAB = 64


@pytest.fixture(params=["in-c", "in-torch"])
def token_ops(request: pytest.FixtureRequest, kernel_cache: Path) -> TokenOps:
    if request.param == "in-torch":
        return TorchTokens()
    return load_cpu_ops(kernel_cache, 2).tokens or pytest.skip("NO C COMPILER HERE")


def test_a_mixed_batch_draws_each_row_by_its_own_parameters(token_ops: TokenOps) -> None:
    sampler = Sampler(
        vocab_tokens=VOCAB, max_batch=len(WANTED), device=torch.device("cpu"), token_ops=token_ops
    )
    rows = [
        SamplerRow(each, seed=11 + slot, choice=slot % 3, prompt=(1, 2), output=())
        for slot, each in enumerate(WANTED)
    ]
    for slot, row in enumerate(rows):
        sampler.admit(SlotAdmit(SlotId(slot), Generation(1), row.sampling, row.seed, row.choice, row.prompt))
    numbers = np.random.default_rng(3)
    for _ in range(24):
        logits = numbers.standard_normal((len(rows), VOCAB)).astype(np.float32)
        plans = [
            RowPlan(SlotId(slot), Generation(1), (0,), 0, 1, len(row.output)) for slot, row in enumerate(rows)
        ]
        found = sampler.sample(torch.from_numpy(logits.copy()), plans, {}).read()
        wanted = [sample_row(one, row) for one, row in zip(logits, rows, strict=True)]
        assert [each.token for each in found] == [each.token for each in wanted]
        rows = [
            replace(row, output=(*row.output, each.token))
            for row, each in zip(rows, wanted, strict=True)
            if each.token is not None
        ]
