"""Block copies: within the device, out to the host's pool and back."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.kv import BlockId, GroupId, KVDtype, KVGroup, KVKind
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.executors.torch_executor.kv_memory import KVMemory
from ridgeline_engine.seam import BlockCopy, CopyKind
from ridgeline_testing.executor_driver import ExecutorDriver
from ridgeline_transfer.allocator import PrivateAllocator

MakeExecutor = Callable[..., TorchExecutor]
BLOCKS, HOST_BLOCKS = 4, 3
FULL = KVGroup(GroupId(0), (0, 2), KVKind.FULL, 16, 1, 4, KVDtype.FP32)
WINDOW = KVGroup(GroupId(1), (1,), KVKind.WINDOW, 16, 2, 4, KVDtype.FP32, window_tokens=32)
TWO_GROUPS = {
    "model_type": "qwen2",
    "config": {
        "use_sliding_window": True,
        "sliding_window": 32,
        "layer_types": ["full_attention", "sliding_attention"],
    },
}


@pytest.mark.parametrize(
    "family", [pytest.param({}, id="one-group"), pytest.param(TWO_GROUPS, id="two-groups")]
)
def test_a_sequence_swapped_out_and_in_to_other_blocks_goes_on_with_the_same_tokens(
    make_folder: Callable[..., Path], make_executor: MakeExecutor, family: dict[str, object]
) -> None:
    folder, prompt = make_folder(**family), [random.Random(4).randrange(3, 512) for _ in range(70)]
    undisturbed = ExecutorDriver(make_executor(folder))
    (expected,) = undisturbed.generate([undisturbed.admit(0, prompt)], 12)

    executor = make_executor(folder, kv_blocks=16, host_blocks=8)
    assert executor.host_blocks == {group.group: 8 for group in executor.kv_groups}
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, prompt)
    driver.generate([slot], 5)
    left = driver.sequences[slot]
    out = [_copy(CopyKind.SWAP_OUT, group, block, at) for group, at, block in _places(left.blocks)]
    driver.run(driver.plan({}, copies=out))
    driver.release(slot)
    other = driver.admit(1, [9] * 250)  # takes all blocks there are
    driver.generate([other], 3)
    driver.release(other)

    slot = driver.admit(0, prompt, output=left.output)
    back = driver.sequences[slot]
    back.computed = left.computed
    plan = driver.plan({slot: left.output[-1:]})
    swapped = {group: back.blocks[group][: len(blocks)] for group, blocks in left.blocks.items()}
    copies = [_copy(CopyKind.SWAP_IN, group, at, block) for group, at, block in _places(swapped)]
    driver.run(replace(plan, copies=tuple(copies)))
    assert driver.generate([slot], 12) == [expected]


def _places(blocks: Mapping[int, Sequence[BlockId]]) -> list[tuple[int, int, int]]:
    """(group, place in the host's pool, block)."""
    return [(group, at, block) for group, held in blocks.items() for at, block in enumerate(held)]


def _copy(kind: CopyKind, group: int, source: int, target: int) -> BlockCopy:
    return BlockCopy(kind, GroupId(group), BlockId(source), BlockId(target))


def _copies() -> st.SearchStrategy[list[BlockCopy]]:
    def copy(kind: CopyKind) -> st.SearchStrategy[BlockCopy]:
        read = HOST_BLOCKS if kind is CopyKind.SWAP_IN else BLOCKS
        written = HOST_BLOCKS if kind is CopyKind.SWAP_OUT else BLOCKS
        places = st.integers(0, read - 1), st.integers(0, written - 1)
        return st.builds(BlockCopy, st.just(kind), st.sampled_from([GroupId(0), GroupId(1)]), *places)

    return st.lists(st.sampled_from(CopyKind).flatmap(copy), max_size=12)


@given(copies=_copies())
@settings(max_examples=200, deadline=None)
def test_many_copies_in_a_plan_are_as_one_after_another(copies: list[BlockCopy]) -> None:
    at_once, one_by_one = _filled_memory(), _filled_memory()
    at_once.copy(copies)
    for copy in copies:
        one_by_one.copy([copy])
    for kind in (CopyKind.ON_DEVICE, CopyKind.SWAP_IN):
        for found, wanted in zip(_contents(at_once, kind), _contents(one_by_one, kind), strict=True):
            assert torch.equal(found, wanted)


def _filled_memory() -> KVMemory:
    memory = KVMemory(
        [FULL, WINDOW],
        blocks=BLOCKS,
        allocator=PrivateAllocator(),
        device=torch.device("cpu"),
        host_blocks=HOST_BLOCKS,
    )
    number = 0.0
    for layer in memory.layers:
        for block in layer:
            number += 1
            block.fill_(number)
    fill = [
        BlockCopy(CopyKind.SWAP_OUT, group, BlockId(block), BlockId(block))
        for group in (GroupId(0), GroupId(1))
        for block in range(HOST_BLOCKS)
    ]
    memory.copy(fill)
    return memory


def _contents(memory: KVMemory, kind: CopyKind) -> list[torch.Tensor]:
    """What the device holds; for SWAP_IN what the host holds, brought there."""
    if kind is CopyKind.SWAP_IN:
        back = [
            BlockCopy(kind, group, BlockId(block), BlockId(block))
            for group in (GroupId(0), GroupId(1))
            for block in range(HOST_BLOCKS)
        ]
        memory.copy(back)
    return [layer.clone() for layer in memory.layers]
