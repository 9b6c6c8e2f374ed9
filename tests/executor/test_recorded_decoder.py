"""One native call a step computes what the operators do one by one, bit for bit."""

import itertools
import random
from collections.abc import Callable
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
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_transfer.allocator import PrivateAllocator

WINDOWS = {
    "use_sliding_window": True,
    "sliding_window": 20,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
FAMILIES = [
    pytest.param({"tied_embeddings": True}, id="llama-tied"),
    pytest.param({"model_type": "qwen2", "layers": 3, "config": WINDOWS}, id="qwen2-with-two-kv-groups"),
    pytest.param({"model_type": "qwen3"}, id="qwen3-with-query-and-key-norm"),
]
HELD = [
    pytest.param({"dtype": "fp32"}, id="fp32"),
    pytest.param({"dtype": "bf16", "deterministic": True}, id="bf16"),
    pytest.param({"dtype": "bf16", "weights": "int8"}, id="int8"),
    pytest.param({"dtype": "fp32", "weights": "int4"}, id="int4-with-fp32-kv"),
]
PROMPT_TOKENS = (5, 40, 21)
STEPS = ((5, 17, 1), (1, 23, 20), (1, 1, 1))
"""Tokens that each sequence computes in a step, after what it has."""


def load(folder: Path, fields: dict[str, Any], *, threads: int) -> LoadedModel:
    cache_dir = Path.home() / ".cache" / "ridgeline" / "kernels"
    settings = TorchSettings(kv_blocks=24, cache_dir=cache_dir, device="cpu", threads=threads, **fields)
    return loading.load_model(
        load_model_folder(folder), settings, allocator=PrivateAllocator(), clock=SystemClock()
    )


def logits_of(model: LoadedModel, on_layer: Callable[[int], None] | None = None) -> list[torch.Tensor]:
    """The same steps for whatever model: chunks, decode rows, and rows that want no logits."""
    slots = SlotTable(model.groups, max_batch=8, max_context_tokens=128)
    blocks = itertools.count()
    for slot in range(len(PROMPT_TOKENS)):
        slots.admit(SlotAdmit(SlotId(slot), Generation(1), SamplingParams(max_tokens=1), 0, 0, (1,)))
        for group in model.groups:
            taken = tuple(BlockId((next(blocks) * 7) % 24) for _ in range(3))
            slots.append(BlockAppend(SlotId(slot), GroupId(group.group), taken))
    builder, ids = BatchBuilder(slots, model.device), random.Random(2)
    done, found = [0] * len(PROMPT_TOKENS), []
    for step in STEPS:
        rows = []
        for slot, count in enumerate(step):
            tokens = tuple(ids.randrange(3, 512) for _ in range(count))
            wanted = int(slot != 1 or step is STEPS[-1])
            rows.append(RowPlan(SlotId(slot), Generation(1), tokens, done[slot], wanted, 0))
            done[slot] += count
        found.append(model.decoder.forward(builder.build(rows, {}), on_layer=on_layer).clone())
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fields", HELD)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_operators_one_by_one(
    make_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    family: dict[str, Any],
    fields: dict[str, Any],
    threads: int,
) -> None:
    folder = make_folder(**family)
    model = load(folder, fields, threads=threads)
    at_once = logits_of(model)
    called: list[int] = []
    by_layer = logits_of(model, called.append)
    monkeypatch.setattr(loading, "record_decoder", lambda *_parts, **_more: None)
    one_by_one = logits_of(load(folder, fields, threads=threads))
    assert called == list(range(model.shape.layers)) * len(STEPS)
    for found, layered, wanted in zip(at_once, by_layer, one_by_one, strict=True):
        assert bool(wanted.isfinite().all())
        assert torch.equal(found, wanted)
        assert torch.equal(layered, wanted)


def test_a_model_with_native_matrices_is_recorded_and_one_with_an_adapter_is_not(
    make_folder: Callable[..., Path],
) -> None:
    model = load(make_folder(), {"dtype": "fp32"}, threads=1)
    weights = model.decoder.weights
    parts: dict[str, Any] = {
        "kv_layers": model.kv.layers,
        "group_of_layer": [0, 0],
        "cos_sin": torch.zeros(128, model.shape.head_dim),
    }
    assert loading.record_decoder(model.ops, model.shape, weights, **parts) is not None

    class FakeAdapter:
        def add(self, x: torch.Tensor, y: torch.Tensor) -> None: ...

    weights.layers[1].down.adapter = FakeAdapter()
    assert loading.record_decoder(model.ops, model.shape, weights, **parts) is None
