"""Deterministic mode: a row's logits are the same bits at any batch size, cut of the prompt, and neighbour."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor import loading
from ridgeline_engine.executors.torch_executor.batch import BatchBuilder
from ridgeline_engine.executors.torch_executor.loading import LoadedModel
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_kernels.cpu import CpuOps
from ridgeline_testing.smollm2 import smollm2_folder
from ridgeline_transfer.allocator import PrivateAllocator

WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES = [
    pytest.param({}, id="llama"),
    pytest.param(
        {"heads": 24, "kv_heads": 1, "tied_embeddings": True}, id="more-heads-on-one-than-a-decode-tile"
    ),
    pytest.param({"model_type": "qwen2", "config": WINDOWS}, id="qwen2-with-a-window"),
    pytest.param({"model_type": "qwen3"}, id="qwen3-with-head-norms"),
]
HELD = [
    pytest.param({"dtype": "fp32"}, id="fp32"),
    pytest.param({"dtype": "bf16"}, id="bf16"),
    pytest.param({"dtype": "bf16", "weights": "int8"}, id="int8"),
    pytest.param({"dtype": "bf16", "weights": "int4"}, id="int4"),
]
BLOCK_TOKENS = 16
Cut = Callable[[random.Random], int]
"""How many tokens a sequence computes in its next step; 0 skips the step."""


def whole(_choices: random.Random) -> int:
    return 10**6


def one_by_one(_choices: random.Random) -> int:
    return 1


def any_size(choices: random.Random) -> int:
    return choices.choice([0, 1, 1, 2, 3, 5, 7, 16, 17, 64, 100])


def load(folder: Path, cache_dir: Path, **fields: Any) -> LoadedModel:
    settings = TorchSettings(
        **({"kv_blocks": 700, "device": "cpu", "threads": 2, "deterministic": True} | fields),
        cache_dir=cache_dir,
    )
    return loading.load_model(
        load_model_folder(folder), settings, allocator=PrivateAllocator(), clock=SystemClock()
    )


def logits_of(
    model: LoadedModel, prompts: Sequence[Sequence[int]], cut: Cut, *, seed: int = 0, hit_tokens: int = 0
) -> list[torch.Tensor]:
    """Logits of every token of every prompt, all in one batch that is cut as `cut` says.

    With `hit_tokens`, the first prompt's leading blocks are computed first, and all others share them as a prefix
    hit; their logits begin after it.
    """
    choices = random.Random(seed)
    slots = SlotTable(model.groups, max_batch=len(prompts), max_context_tokens=model.max_context_tokens)
    blocks = list(range(model.kv.layers[0].shape[0]))
    choices.shuffle(blocks)
    shared: dict[GroupId, tuple[BlockId, ...]] = {}
    for slot, prompt in enumerate(prompts):
        slots.admit(SlotAdmit(SlotId(slot), Generation(1), SamplingParams(max_tokens=1), 0, 0, ()))
        for group in model.groups:
            hit = shared.get(group.group, ())
            taken = tuple(BlockId(blocks.pop()) for _ in range(group.blocks_for(len(prompt)) - len(hit)))
            slots.append(BlockAppend(SlotId(slot), group.group, hit + taken))
            shared.setdefault(group.group, taken[: hit_tokens // BLOCK_TOKENS])
    builder = BatchBuilder(slots, model.device)
    done = [0 if slot == 0 else hit_tokens for slot in range(len(prompts))]
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]

    def step(wanted: Sequence[tuple[int, int]]) -> None:
        rows = [
            RowPlan(SlotId(slot), Generation(1), tuple(prompts[slot][done[slot] :][:size]), done[slot], 1, 0)
            for slot, size in wanted
            if size and done[slot] < len(prompts[slot])
        ]
        if not rows:
            return
        rows = [row._replace(logits=len(row.tokens)) for row in rows]
        found = model.decoder.forward(builder.build(rows, {}))
        for row, part in zip(rows, found.split([len(row.tokens) for row in rows]), strict=True):
            logits[row.slot].append(part.clone())
            done[row.slot] += len(row.tokens)

    if hit_tokens:
        step([(0, hit_tokens)])
    while any(count < len(prompt) for count, prompt in zip(done, prompts, strict=True)):
        step([(slot, cut(choices)) for slot in range(len(prompts))])
    return [torch.cat(parts) for parts in logits]


def random_prompts(count: int, *, longest: int, vocab: int = 512) -> list[list[int]]:
    choices = random.Random(count)
    lengths = [longest, *(choices.randrange(1, longest) for _ in range(count - 1))]
    return [[choices.randrange(3, vocab) for _ in range(length)] for length in lengths]


def assert_same_bits(found: Sequence[torch.Tensor], alone: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, alone, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_have_the_same_bits_alone_in_any_batch_and_however_prompts_are_cut(
    make_folder: Callable[..., Path], kernel_cache: Path, family: dict[str, Any], held: dict[str, Any]
) -> None:
    model = load(make_folder(**family), kernel_cache, **held)
    prompts = random_prompts(32, longest=130)
    alone = [logits_of(model, [prompt], whole, seed=slot)[0] for slot, prompt in enumerate(prompts)]
    for count in (2, 7, 32):
        assert_same_bits(logits_of(model, prompts[:count], any_size, seed=count), alone[:count])
    assert_same_bits(logits_of(model, prompts, whole, seed=1), alone)
    assert_same_bits(logits_of(model, prompts[:4], one_by_one, seed=2), alone[:4])


@pytest.mark.parametrize("held", HELD[:2])
def test_a_context_of_several_partitions_gives_the_same_bits_decoded_or_prefilled(
    make_folder: Callable[..., Path], kernel_cache: Path, held: dict[str, Any]
) -> None:
    model = load(make_folder(model_type="qwen2", config=WINDOWS), kernel_cache, **held)
    prompts = random_prompts(3, longest=1300)
    (alone,) = logits_of(model, prompts[:1], whole)
    (stepwise,) = logits_of(model, prompts[:1], lambda choices: choices.choice([1, 2, 9, 33]), seed=5)
    assert torch.equal(stepwise, alone)
    assert torch.equal(logits_of(model, prompts, any_size, seed=6)[0], alone)


@pytest.mark.parametrize("held", HELD[:2])
def test_a_prefix_hit_gives_the_bits_of_recomputation(
    make_folder: Callable[..., Path], kernel_cache: Path, held: dict[str, Any]
) -> None:
    model = load(make_folder(), kernel_cache, **held)
    (first, *others), shared = random_prompts(5, longest=130), 96
    prompts = [first, *(first[:shared] + other for other in others)]
    alone = [logits_of(model, [prompt], whole, seed=slot)[0] for slot, prompt in enumerate(prompts)]
    found = logits_of(model, prompts, any_size, seed=3, hit_tokens=shared)
    assert torch.equal(found[0], alone[0])
    assert_same_bits(found[1:], [logits[shared:] for logits in alone[1:]])


def test_without_the_mode_a_cut_prompt_gives_other_bits(
    make_folder: Callable[..., Path], kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison finds a kernel that depends on the cut: attention as it is by default."""
    monkeypatch.setattr(loading, "record_decoder", lambda *_parts, **_more: None)
    found = CpuOps.paged_attention

    def planted(self: CpuOps, *tensors: Any, **options: Any) -> torch.Tensor:
        return found(self, *tensors, **(options | {"invariant": False}))

    monkeypatch.setattr(CpuOps, "paged_attention", planted)
    model = load(make_folder(), kernel_cache, dtype="fp32")
    prompts = random_prompts(1, longest=130)
    assert not torch.equal(*logits_of(model, prompts, whole), *logits_of(model, prompts, one_by_one))


def test_heads_that_the_kernel_cannot_take_are_refused_by_name(
    make_folder: Callable[..., Path], kernel_cache: Path
) -> None:
    folder = make_folder(config={"head_dim": 24})
    with pytest.raises(SettingsError, match="head_dim=24"):
        load(folder, kernel_cache, dtype="fp32")


@pytest.mark.parametrize("held", HELD[:2])
def test_the_real_small_model_gives_the_same_bits_in_every_batch(
    kernel_cache: Path, held: dict[str, Any]
) -> None:
    model = load(smollm2_folder(), kernel_cache, **held)
    prompts = random_prompts(8, longest=160, vocab=40_000)
    alone = [logits_of(model, [prompt], whole, seed=slot)[0] for slot, prompt in enumerate(prompts[:3])]
    assert_same_bits(logits_of(model, prompts, any_size, seed=4)[:3], alone)
