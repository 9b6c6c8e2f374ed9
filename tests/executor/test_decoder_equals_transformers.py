"""Logits against transformers' reading of the same folder, for the ways in which a batch can be cut and laid
out."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor import loading
from ridgeline_engine.executors.torch_executor.batch import BatchBuilder
from ridgeline_engine.executors.torch_executor.loading import LoadedModel
from ridgeline_engine.executors.torch_executor.ops import Ops
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_testing.oracle import reference_logits, reference_model
from ridgeline_transfer.allocator import PrivateAllocator

TOLERANCE = 2e-4
"""Absolute, on logits of a few units: fp32 sums in another order."""
BLOCK_TOKENS = 16
LENGTHS = (1, 15, 16, 17, 47)
POISON = float("nan")

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 20}
QWEN_WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 9,
    "max_window_layers": 1,
    "layer_types": ["full_attention", "sliding_attention"],
}
LLAMA3_ROPE = {
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
}
FAMILIES = [
    pytest.param({}, id="llama"),
    pytest.param({"tied_embeddings": True, "heads": 8, "kv_heads": 1}, id="llama-tied-eight-heads-on-one"),
    pytest.param({"config": LLAMA3_ROPE}, id="llama3-rope"),
    pytest.param({"config": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}}, id="linear-rope"),
    pytest.param({"config": MISTRAL}, id="mistral-with-a-window"),
    pytest.param({"model_type": "qwen2"}, id="qwen2-with-attention-bias"),
    pytest.param({"model_type": "qwen2", "config": QWEN_WINDOWS}, id="qwen2-with-two-kv-groups"),
    pytest.param({"model_type": "qwen3"}, id="qwen3-with-query-and-key-norm"),
]


def torch_ops(_device: torch.device, _weights: object, **_settings: object) -> Ops:
    return TorchOps(torch.float32)


def use_torch_operators(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "choose_ops", torch_ops)


def use_native_operators_one_by_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "record_decoder", lambda *_parts, **_more: None)


WAYS = [
    pytest.param(lambda _patch: None, id="native-in-one-call"),
    pytest.param(use_native_operators_one_by_one, id="native-one-by-one"),
    pytest.param(use_torch_operators, id="torch"),
]


def load(folder: Path, settings: TorchSettings) -> LoadedModel:
    """A model whose unused KV is not a number: whoever reads it shows it."""
    model = loading.load_model(
        load_model_folder(folder), settings, allocator=PrivateAllocator(), clock=SystemClock()
    )
    for layer in model.kv.layers:
        layer.fill_(POISON)
    return model


def run_in_pieces(
    model: LoadedModel, prompts: list[list[int]], settings: TorchSettings, *, seeds: Sequence[int]
) -> list[torch.Tensor]:
    """Logits of every token of every prompt; each step takes a piece, perhaps none, of each, by its own
    seed."""
    blocks_order, cuts = random.Random(sum(seeds)), [random.Random(seed) for seed in seeds]
    slots = SlotTable(model.groups, max_batch=settings.max_batch, max_context_tokens=model.max_context_tokens)
    free = {group.group: list(range(settings.kv_blocks)) for group in model.groups}
    for slot, prompt in enumerate(prompts):
        slots.admit(SlotAdmit(SlotId(slot), Generation(1), SamplingParams(max_tokens=1), 0, 0, tuple(prompt)))
        for group in model.groups:
            blocks = free[group.group]
            blocks_order.shuffle(blocks)
            taken = tuple(BlockId(blocks.pop()) for _ in range(group.blocks_for(len(prompt))))
            slots.append(BlockAppend(SlotId(slot), GroupId(group.group), taken))
    builder = BatchBuilder(slots, model.device)
    done = [0] * len(prompts)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    while any(count < len(prompt) for count, prompt in zip(done, prompts, strict=True)):
        rows = []
        for slot, prompt in enumerate(prompts):
            piece = tuple(prompt[done[slot] : done[slot] + cuts[slot].choice([0, 1, 1, 7, 16, 17, 30])])
            if piece:
                rows.append(RowPlan(SlotId(slot), Generation(1), piece, done[slot], len(piece), 0))
        if not rows:
            continue
        found = model.decoder.forward(builder.build(rows, {}))
        for row, part in zip(rows, found.split([len(row.tokens) for row in rows]), strict=True):
            logits[row.slot].append(part.clone())
            done[row.slot] += len(row.tokens)
    return [torch.cat(parts) for parts in logits]


@pytest.mark.parametrize("choose_way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_however_the_prompts_are_cut(
    make_folder: Callable[..., Path],
    kernel_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    family: dict[str, Any],
    choose_way: Callable[[pytest.MonkeyPatch], None],
) -> None:
    choose_way(monkeypatch)
    folder = make_folder(**family)
    choices = random.Random(5)
    prompts = [[choices.randrange(3, 512) for _ in range(length)] for length in LENGTHS]
    settings = TorchSettings(
        kv_blocks=24, cache_dir=kernel_cache, dtype="fp32", block_tokens=BLOCK_TOKENS, device="cpu"
    )
    model = load(folder, settings)
    reference = reference_model(folder)
    for seed in range(3):
        pieces = run_in_pieces(model, prompts, settings, seeds=range(seed, seed + len(prompts)))
        for prompt, logits in zip(prompts, pieces, strict=True):
            expected = reference_logits(reference, prompt)
            torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_bf16_logits_are_near_transformers_fp32(make_folder: Callable[..., Path], kernel_cache: Path) -> None:
    folder = make_folder()
    settings = TorchSettings(kv_blocks=24, cache_dir=kernel_cache, dtype="bf16", device="cpu")
    model = load(folder, settings)
    prompt = [random.Random(3).randrange(3, 512) for _ in range(40)]
    (logits,) = run_in_pieces(model, [prompt], settings, seeds=[0])
    # Weights are equal; only keys and values are rounded to 8 bits of precision.
    torch.testing.assert_close(logits, reference_logits(reference_model(folder), prompt), atol=0.1, rtol=0)


def test_a_row_is_the_same_bit_for_bit_alone_and_among_others(
    make_folder: Callable[..., Path], kernel_cache: Path
) -> None:
    settings = TorchSettings(
        kv_blocks=64, cache_dir=kernel_cache, dtype="fp32", device="cpu", deterministic=True
    )
    model = load(make_folder(), settings)
    choices = random.Random(1)
    prompts = [[choices.randrange(3, 512) for _ in range(33)] for _ in range(7)]
    together = run_in_pieces(model, prompts, settings, seeds=range(7))
    for seed, (prompt, logits) in enumerate(zip(prompts, together, strict=True)):
        (alone,) = run_in_pieces(model, [prompt], settings, seeds=[seed])
        assert torch.equal(alone, logits)
