"""A model that alternates full and 128-token window layers, over texts of more than three windows."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.kv import BlockId, GroupId, KVKind
from ridgeline_contracts.model_folder import load_model_folder
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.executors.torch_executor import loading
from ridgeline_engine.executors.torch_executor.batch import BatchBuilder
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.settings import TorchSettings
from ridgeline_engine.executors.torch_executor.slots import SlotTable
from ridgeline_engine.executors.torch_executor.torch_ops import TorchOps
from ridgeline_engine.kv_manager import KVManager
from ridgeline_engine.request import Request, RequestKey
from ridgeline_engine.seam import BlockAppend, Generation, RowPlan, SlotAdmit, SlotId
from ridgeline_engine.settings import AsyncScheduling, EngineSettings
from ridgeline_roofline.decisions.preemption import PreemptionKind
from ridgeline_testing.oracle import greedy_continuations, reference_logits, reference_model
from ridgeline_transfer.allocator import PrivateAllocator

WINDOW_TOKENS = 128
BLOCK_TOKENS = 16
CHUNKS = (200, 90, 1, 1, 33, 1, 100, 1, 40)
TOLERANCE = 2e-4
"""Absolute, on logits of a few units: fp32 sums in another order."""


@pytest.fixture(scope="module")
def folder(make_folder: Callable[..., Path]) -> Path:
    kinds = ["full_attention", "sliding_attention"] * 2
    config = {"use_sliding_window": True, "sliding_window": WINDOW_TOKENS, "layer_types": kinds}
    return make_folder(model_type="qwen2", layers=4, config=config)


def use_torch_operators(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "choose_ops", lambda *_parts, **_more: TorchOps(torch.float32))


@pytest.mark.parametrize(
    "choose_way",
    [pytest.param(lambda _patch: None, id="native"), pytest.param(use_torch_operators, id="torch")],
)
def test_what_has_left_the_window_is_never_read_again(
    folder: Path,
    kernel_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    choose_way: Callable[[pytest.MonkeyPatch], None],
) -> None:
    choose_way(monkeypatch)
    tokens = [random.Random(8).randrange(3, 512) for _ in range(sum(CHUNKS))]
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    settings = TorchSettings(
        kv_blocks=blocks, cache_dir=kernel_cache, dtype="fp32", block_tokens=BLOCK_TOKENS, device="cpu"
    )
    model = loading.load_model(
        load_model_folder(folder), settings, allocator=PrivateAllocator(), clock=SystemClock()
    )
    window = next(group for group in model.groups if group.kind is KVKind.WINDOW)
    slots = SlotTable(model.groups, max_batch=1, max_context_tokens=len(tokens))
    slots.admit(SlotAdmit(SlotId(0), Generation(1), SamplingParams(max_tokens=1), 0, 0, (1,)))
    for group in model.groups:
        slots.append(BlockAppend(SlotId(0), GroupId(group.group), tuple(map(BlockId, range(blocks)))))
    builder, found, done = BatchBuilder(slots, model.device), [], 0
    for count in CHUNKS:
        gone = max(0, done - WINDOW_TOKENS + 1) // BLOCK_TOKENS
        for layer in window.layers:
            model.kv.layers[layer][:gone].fill_(float("nan"))  # as a faulty neighbour might leave them
        row = RowPlan(SlotId(0), Generation(1), tuple(tokens[done : done + count]), done, count, 0)
        found.append(model.decoder.forward(builder.build([row], {})).clone())
        done += count
    expected = reference_logits(reference_model(folder), tokens)
    torch.testing.assert_close(torch.cat(found), expected, atol=TOLERANCE, rtol=0)


PROMPT_TOKENS = (390, 130, 450)
OUTPUTS = 80


@dataclass(slots=True)
class Served:
    """What an engine over a real executor gave by prompt, and what it held at most."""

    engine: Engine
    texts: list[tuple[int, ...]] = field(default_factory=list)
    most_held: dict[GroupId, int] = field(default_factory=dict)


def _prompts() -> list[list[int]]:
    drawn = random.Random(9)
    return [[drawn.randrange(3, 512) for _ in range(length)] for length in PROMPT_TOKENS]


def _serve(executor: TorchExecutor, *, spoil: bool = False, **settings: object) -> Served:
    """All prompts at once, greedily. `spoil` puts NaN into every block that nobody holds, before each step."""
    chosen = EngineSettings(
        eos_token_ids=(),
        max_batch=4,
        async_scheduling=AsyncScheduling.OFF if spoil else AsyncScheduling.ON,
        **settings,
    )
    engine: Any = Engine(executor, SystemClock(), chosen)
    served, kv = Served(engine), engine._scheduler.kv
    sampling = SamplingParams(max_tokens=OUTPUTS, temperature=0.0, ignore_eos=True)
    keys = [RequestKey(RequestId(f"text-{number}"), Attempt(0)) for number in range(len(PROMPT_TOKENS))]
    for key, prompt in zip(keys, _prompts(), strict=True):
        engine.submit(Request(key, tuple(prompt), sampling))
    given: dict[RequestKey, list[int]] = {key: [] for key in keys}
    while engine.has_work:
        if spoil:
            _spoil(executor, kv)
        for output in engine.step():
            given[output.key].extend(output.tokens)
        engine.check()
        for group in kv.groups:
            held = kv.pool.counts(group.group).held
            served.most_held[group.group] = max(held, served.most_held.get(group.group, 0))
    served.texts = [tuple(given[key]) for key in keys]
    return served


def _spoil(executor: Any, kv: KVManager) -> None:
    for group in kv.groups:
        nobodys = [
            block
            for block in range(kv.pool.counts(group.group).total)
            if not kv.pool.holders(group.group, BlockId(block))
        ]
        for layer in group.layers:
            executor._runner._model.kv.layers[layer][nobodys] = float("nan")


def test_greedy_tokens_through_the_engine_equal_transformers_while_the_window_frees_its_blocks(
    folder: Path, make_executor: Callable[..., TorchExecutor]
) -> None:
    executor = make_executor(folder, kv_blocks=112)
    served = _serve(executor)
    assert served.texts == greedy_continuations(folder, _prompts(), output_tokens=OUTPUTS)
    full, window = (
        next(group.group for group in executor.kv_groups if group.kind is kind)
        for kind in (KVKind.FULL, KVKind.WINDOW)
    )
    # Texts of 470, 210 and 530 tokens: 30 + 14 + 34 blocks in one group; three windows over 9 each in the other.
    assert served.most_held[full] == 78
    assert served.most_held[window] <= 27
    load = served.engine.load()
    assert load.free_blocks == load.total_blocks


def test_no_block_of_others_is_read_through_a_table_that_still_names_it(
    folder: Path, make_executor: Callable[..., TorchExecutor]
) -> None:
    served = _serve(make_executor(folder, kv_blocks=112), spoil=True, prefix_cache=False)
    assert served.texts == greedy_continuations(folder, _prompts(), output_tokens=OUTPUTS)


def test_a_sequence_that_was_swapped_out_and_in_gives_the_same_text(
    folder: Path, make_executor: Callable[..., TorchExecutor]
) -> None:
    executor = make_executor(folder, kv_blocks=66, host_blocks=80)
    assert executor.host_copy_bytes_per_ms is not None
    served = _serve(
        executor,
        preemption="swap",
        prefix_cache=False,
        host_copy_bytes_per_ms=executor.host_copy_bytes_per_ms,
    )
    assert {record.kind for record in served.engine.preemption_trace} == {PreemptionKind.SWAP}
    assert served.texts == greedy_continuations(folder, _prompts(), output_tokens=OUTPUTS)
