"""What a row gets is the same bits alone, beside any rows, in any order and slot, and in a batch of some slots."""

import random
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_engine.executors.torch_executor.draw_batch import TokenOps
from ridgeline_engine.executors.torch_executor.sampler import Sampler
from ridgeline_engine.sampler_oracle import Sampled, SamplerRow
from ridgeline_engine.seam import SlotId
from ridgeline_testing.sampler_cases import CASES, STEPS, VOCAB, Case, admit_all, step

SLOTS = 12


def sampler_of(token_ops: TokenOps) -> Sampler:
    return Sampler(vocab_tokens=VOCAB, max_batch=SLOTS, device=torch.device("cpu"), token_ops=token_ops)


def grown(row: SamplerRow, found: Sampled) -> SamplerRow:
    return row if found.token is None else replace(row, output=(*row.output, found.token))


def alone(token_ops: TokenOps, case: Case) -> list[Sampled]:
    """A step each, up to a fault: a row that faulted is not run again."""
    sampler, row, found = sampler_of(token_ops), case.row, list[Sampled]()
    admit_all(sampler, [row])
    for logits in case.logits:
        found += step(sampler, logits[None], [row])
        if found[-1].token is None:
            break
        row = grown(row, found[-1])
    return found


@settings(max_examples=60, deadline=None)
@given(cases=st.lists(CASES, min_size=2, max_size=6), seed=st.integers(0, 2**32))
def test_neighbours_order_and_slots_change_nothing(token_ops: TokenOps, cases: list[Case], seed: int) -> None:
    wanted = [alone(token_ops, case) for case in cases]
    choices = random.Random(seed)
    sampler = sampler_of(token_ops)
    # Former owners leave their state behind, as they do in a server.
    admit_all(sampler, [case.row for case in cases])
    for slot in range(len(cases)):
        sampler.release(SlotId(slot))
    slots = choices.sample(range(SLOTS), k=len(cases))
    rows = [case.row for case in cases]
    admit_all(sampler, rows, slots)
    found: list[list[Sampled]] = [[] for _ in cases]
    for _ in range(3 * STEPS):
        open_rows = [at for at, one in enumerate(found) if len(one) < len(wanted[at])]
        batch = choices.sample(open_rows, k=choices.randint(0, len(open_rows)))
        if not batch:
            continue
        logits = np.stack([cases[at].logits[len(found[at])] for at in batch])
        results = step(sampler, logits, [rows[at] for at in batch], [slots[at] for at in batch])
        for at, result in zip(batch, results, strict=True):
            found[at].append(result)
            rows[at] = grown(rows[at], result)
    for got, want in zip(found, wanted, strict=True):
        assert got == want[: len(got)]
