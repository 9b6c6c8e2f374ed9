"""Classic defects of samplers, planted one at a time: a fixed set of rows tells each of them from the oracle."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor import draw_batch, sampler
from ridgeline_engine.executors.torch_executor.draw_batch import TorchTokens
from ridgeline_engine.executors.torch_executor.logprobs import RawLogprobs
from ridgeline_engine.executors.torch_executor.penalties import PenaltyState
from ridgeline_engine.executors.torch_executor.sampler import Sampler
from ridgeline_engine.executors.torch_executor.slot_columns import SlotColumns
from ridgeline_engine.sampler_oracle import SamplerRow, sample_row
from ridgeline_engine.seam import SlotAdmit
from ridgeline_kernels.cpu import DrawColumns
from ridgeline_testing.sampler_cases import NEUTRAL, VOCAB, admit_all, assert_same, packed, step

ROWS_OF_EACH = 24
STEPS = 4
PARAMETERS: list[SamplingParams] = [
    NEUTRAL,
    replace(NEUTRAL, temperature=0.0),
    replace(NEUTRAL, temperature=0.0, min_tokens=3, stop_token_ids=(5,)),
    replace(NEUTRAL, temperature=0.6, top_k=5),
    replace(NEUTRAL, temperature=1.6, top_p=0.6),
    replace(NEUTRAL, temperature=0.5, min_p=0.2),
    replace(NEUTRAL, temperature=1.5, top_k=12, top_p=0.8, min_p=0.02),
    replace(NEUTRAL, temperature=0.0, repetition_penalty=1.5, logprobs=3),
    replace(NEUTRAL, temperature=0.0, presence_penalty=1.0),
    replace(NEUTRAL, temperature=0.0, frequency_penalty=1.0),
    replace(NEUTRAL, temperature=0.8, repetition_penalty=0.7, frequency_penalty=0.5, presence_penalty=-0.5),
    replace(NEUTRAL, temperature=0.0, logit_bias=((7, 4.0), (9, -4.0)), logprobs=2),
]


def fixed_rows() -> tuple[list[SamplerRow], npt.NDArray[np.float32]]:
    """(rows, logits [steps, rows, vocab]): halves, so that many logits tie. The tokens that a row's parameters are
    about are likely ones; some rows have negative logits only, some a mask."""
    random = np.random.default_rng(17)
    rows, places = list[SamplerRow](), list[npt.NDArray[np.int64]]()
    for sampling in PARAMETERS:
        for number in range(ROWS_OF_EACH):
            ids = random.integers(0, VOCAB, size=6)
            places.append(np.array([*ids, 5, 7, 9]))
            first, second, *prompt, end = ids.tolist()
            mask = packed(random.random(VOCAB) < 0.5) if number % 4 == 3 else None
            seed = int(random.integers(0, 2**63)) * 2 + 1
            output = (first, first, first, second)[: number % 5]
            rows.append(SamplerRow(sampling, seed, number % 3, tuple(prompt), output, (end,), mask))
    logits = np.round(random.standard_normal((STEPS, len(rows), VOCAB)) * 4) / 2
    for row, ids in enumerate(places):
        logits[:, row, ids] += np.round(random.random((STEPS, len(ids))) * 4) + 2
        logits[:, row] -= 20 * (row % 4 == 1)
    return rows, logits.astype(np.float32)


def compare_with_the_oracle() -> None:
    """Raises AssertionError at the first row that is not the oracle's."""
    rows, logits = fixed_rows()
    chooser = Sampler(
        vocab_tokens=VOCAB, max_batch=len(rows), device=torch.device("cpu"), token_ops=TorchTokens()
    )
    admit_all(chooser, rows)
    for now in logits:
        found = step(chooser, now, rows)
        for got, one, row in zip(found, now, rows, strict=True):
            assert_same(got, sample_row(one, row))
        rows = [
            replace(row, output=(*row.output, got.token or 0)) for row, got in zip(rows, found, strict=True)
        ]


Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, Plant] = {}


def plant(defect: Plant) -> Plant:
    PLANTS[defect.__name__.replace("_", "-")] = defect
    return defect


def wrapped(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Puts change(original, *arguments) in the place of owner.name."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **more: change(original, *arguments, **more))


def ranks(scaled: torch.Tensor) -> torch.Tensor:
    return scaled.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)


@plant
def top_p_is_cut_before_the_token_that_crosses(patch: pytest.MonkeyPatch) -> None:
    def cut(original: Any, scaled: Any, weights: Any, rows: Any, shares: Any) -> None:
        crossing = weights.clone()
        original(scaled, crossing, rows, shares)
        for row in rows.tolist():
            kept = crossing[row] > 0
            least = scaled[row][kept].min()
            weights[row] = (
                crossing[row].masked_fill(scaled[row] == least, 0.0) if kept.sum() > 1 else crossing[row]
            )

    wrapped(patch, draw_batch, "_cut_top_p", cut)


@plant
def ties_at_the_top_p_boundary_are_cut(patch: pytest.MonkeyPatch) -> None:
    def cut(_original: Any, scaled: Any, weights: Any, rows: Any, shares: Any) -> None:
        for row, share in zip(rows.tolist(), shares.tolist(), strict=True):
            order = scaled[row].argsort(descending=True, stable=True)
            reached = weights[row][order].cumsum(0) >= share * weights[row].sum()
            weights[row][order[int(reached.to(torch.uint8).argmax()) + 1 :]] = 0.0

    wrapped(patch, draw_batch, "_cut_top_p", cut)


@plant
def ties_at_the_top_k_boundary_are_cut(patch: pytest.MonkeyPatch) -> None:
    def cut(_original: Any, scaled: Any, rows: Any, counts: Any) -> None:
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            scaled[row] = scaled[row].masked_fill(ranks(scaled[row]) >= count, -torch.inf)

    wrapped(patch, draw_batch, "_cut_top_k", cut)


@plant
def top_k_keeps_one_too_many(patch: pytest.MonkeyPatch) -> None:
    wrapped(patch, draw_batch, "_cut_top_k", lambda cut, scaled, rows, counts: cut(scaled, rows, counts + 1))


def changed_columns(
    patch: pytest.MonkeyPatch, change: Callable[[Any, Any, DrawColumns], DrawColumns]
) -> None:
    wrapped(
        patch,
        draw_batch,
        "_kept_weights",
        lambda kept, logits, best, columns: kept(logits, best, change(logits, best, columns)),
    )


@plant
def min_p_is_a_share_of_the_sum_and_not_of_the_best(patch: pytest.MonkeyPatch) -> None:
    def shares(logits: torch.Tensor, best: torch.Tensor, columns: DrawColumns) -> DrawColumns:
        scaled = (logits - best) / torch.from_numpy(columns.temperature).unsqueeze(1)
        return replace(columns, min_p=columns.min_p * scaled.double().exp().sum(dim=1).numpy())

    changed_columns(patch, shares)


@plant
def the_temperature_comes_after_the_cuts(patch: pytest.MonkeyPatch) -> None:
    def kept(original: Any, logits: Any, best: Any, columns: DrawColumns) -> Any:
        cold = original(logits, best, replace(columns, temperature=np.ones_like(columns.temperature)))
        return torch.where(
            cold > 0, cold.pow(1 / torch.from_numpy(columns.temperature).unsqueeze(1).double()), 0.0
        )

    wrapped(patch, draw_batch, "_kept_weights", kept)


@plant
def the_token_is_chosen_in_order_of_weight(patch: pytest.MonkeyPatch) -> None:
    def draw(_original: Any, _self: Any, logits: Any, best: Any, rows: Any, columns: DrawColumns) -> Any:
        weights = draw_batch._kept_weights(logits[rows], best.unsqueeze(1), columns)
        ordered, ids = weights.sort(dim=-1, descending=True, stable=True)
        cumulative = ordered.cumsum(dim=-1)
        target = torch.from_numpy(columns.uniform).unsqueeze(1) * cumulative[:, -1:]
        return ids.gather(1, torch.searchsorted(cumulative, target, right=True)).squeeze(1)

    wrapped(patch, TorchTokens, "draw", draw)


@plant
def greedy_takes_the_highest_id_of_a_tie(patch: pytest.MonkeyPatch) -> None:
    def best(_original: Any, _self: Any, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return VOCAB - 1 - logits.flip(-1).argmax(dim=-1), logits.amax(dim=-1)

    wrapped(patch, TorchTokens, "best", best)


@plant
def presence_and_frequency_count_the_prompt(patch: pytest.MonkeyPatch) -> None:
    def admit(original: Any, self: Any, given: SlotAdmit) -> None:
        original(self, replace(given, output=given.prompt + given.output))

    wrapped(patch, PenaltyState, "admit", admit)


@plant
def repetition_forgets_the_prompt(patch: pytest.MonkeyPatch) -> None:
    wrapped(patch, PenaltyState, "admit", lambda admit, self, given: admit(self, replace(given, prompt=())))


@plant
def penalties_forget_the_output_before_a_preemption(patch: pytest.MonkeyPatch) -> None:
    wrapped(patch, PenaltyState, "admit", lambda admit, self, given: admit(self, replace(given, output=())))


@plant
def penalties_do_not_see_the_tokens_drawn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PenaltyState, "count", lambda *_arguments: None)


@plant
def frequency_is_counted_once_like_presence(patch: pytest.MonkeyPatch) -> None:
    def count(original: Any, self: PenaltyState, slots: Any, tokens: Any) -> None:
        original(self, slots, tokens)
        self._counts.clamp_(max=1)

    wrapped(patch, PenaltyState, "count", count)


@plant
def repetition_divides_negative_logits_too(patch: pytest.MonkeyPatch) -> None:
    def apply(original: Any, self: Any, logits: torch.Tensor, rows: Any, slots: Any) -> None:
        before = logits.clone()
        logits.clamp_(min=0)
        original(self, logits, rows, slots)
        logits += before.clamp(max=0)

    wrapped(patch, PenaltyState, "apply", apply)


@plant
def the_mask_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampler, "apply_masks", lambda *_arguments: None)


@plant
def the_bits_of_the_mask_are_read_from_the_other_end(patch: pytest.MonkeyPatch) -> None:
    def swapped(original: Any, logits: Any, masks: Any) -> None:
        original(logits, {row: mask.byteswap() for row, mask in masks.items()})

    wrapped(patch, sampler, "apply_masks", swapped)


@plant
def min_tokens_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampler, "forbid", lambda *_arguments: None)


def changed_put(patch: pytest.MonkeyPatch, change: Callable[[SlotAdmit], SlotAdmit]) -> None:
    def put(original: Any, self: Any, admit: SlotAdmit, **more: Any) -> None:
        original(self, change(admit), **more)

    wrapped(patch, SlotColumns, "put", put)


@plant
def min_tokens_holds_one_token_too_long(patch: pytest.MonkeyPatch) -> None:
    def longer(admit: SlotAdmit) -> SlotAdmit:
        least = admit.sampling.min_tokens
        return replace(admit, sampling=replace(admit.sampling, min_tokens=least + 1 if least else 0))

    changed_put(patch, longer)


@plant
def min_tokens_lets_stop_tokens_through(patch: pytest.MonkeyPatch) -> None:
    changed_put(patch, lambda admit: replace(admit, sampling=replace(admit.sampling, stop_token_ids=())))


@plant
def min_tokens_lets_the_end_of_the_text_through(patch: pytest.MonkeyPatch) -> None:
    changed_put(patch, lambda admit: replace(admit, eos_token_ids=()))


@plant
def the_bias_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampler, "add_bias", lambda *_arguments: None)


@plant
def logprobs_are_of_the_adjusted_logits(patch: pytest.MonkeyPatch) -> None:
    class FakeLateLogprobs:
        """Reads from the logits that the sampler changes in place."""

        def __init__(self, found: RawLogprobs, logits: torch.Tensor) -> None:
            self._found, self._logits = found, logits

        def read(self, tokens: torch.Tensor) -> Any:
            return replace(self._found, logits=self._logits[self._found.rows]).read(tokens)

    wrapped(
        patch,
        sampler,
        "raw_logprobs",
        lambda original, logits, *more: FakeLateLogprobs(original(logits, *more), logits),
    )


def changed_uniforms(patch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    wrapped(patch, sampler, "uniforms", change)


@plant
def the_draw_is_addressed_one_position_late(patch: pytest.MonkeyPatch) -> None:
    changed_uniforms(patch, lambda found, seed, choice, at, **more: found(seed, choice, at + 1, **more))


@plant
def the_draw_forgets_the_choice(patch: pytest.MonkeyPatch) -> None:
    changed_uniforms(patch, lambda found, seed, choice, at, **more: found(seed, choice * 0, at, **more))


@plant
def the_draw_takes_half_of_the_seed(patch: pytest.MonkeyPatch) -> None:
    low = np.uint64(2**32 - 1)
    changed_uniforms(patch, lambda found, seed, choice, at, **more: found(seed & low, choice, at, **more))


@plant
def the_draw_is_the_one_for_drafts(patch: pytest.MonkeyPatch) -> None:
    changed_uniforms(patch, lambda found, seed, choice, at, **_more: found(seed, choice, at, draw=1))


def test_the_fixed_rows_are_the_oracles() -> None:
    compare_with_the_oracle()


@pytest.mark.parametrize("defect", PLANTS)
def test_each_planted_defect_is_caught(monkeypatch: pytest.MonkeyPatch, defect: str) -> None:
    PLANTS[defect](monkeypatch)
    with pytest.raises(AssertionError):
        compare_with_the_oracle()
