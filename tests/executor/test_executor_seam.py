"""The seam's promises, on a tiny model: batching, chunks, references, slots, copies, masks, hooks and
faults."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ridgeline_contracts.errors import DeviceFault, InvariantError, Unsupported
from ridgeline_contracts.kv import BlockId, GroupId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.seam import (
    BlockCopy,
    CopyKind,
    Generation,
    LaunchId,
    RowPlan,
    SlotId,
    StepPlan,
    TokenRef,
)
from ridgeline_testing.executor_driver import GREEDY, ExecutorDriver
from ridgeline_testing.oracle import greedy_continuations

MakeExecutor = Callable[..., TorchExecutor]
SAMPLED = SamplingParams(max_tokens=64, temperature=0.9, top_p=0.95, frequency_penalty=0.3)


@pytest.fixture(scope="module")
def folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder()


@pytest.fixture
def executor(folder: Path, make_executor: MakeExecutor) -> TorchExecutor:
    return make_executor(folder)


def prompts_of(*lengths: int) -> list[list[int]]:
    choices = random.Random(7)
    return [[choices.randrange(3, 512) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("chunk_tokens", [1, 15, 16, 17, 1000])
def test_greedy_tokens_equal_transformers_whatever_the_chunks_and_the_batch(
    executor: TorchExecutor, folder: Path, tmp_path: Path, chunk_tokens: int
) -> None:
    prompts = prompts_of(1, 15, 16, 17, 33)
    expected = greedy_continuations(folder, prompts, output_tokens=20, cache_dir=tmp_path)
    driver = ExecutorDriver(executor)
    slots = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    assert driver.generate(slots, 20, chunk_tokens=chunk_tokens) == [list(ids) for ids in expected]


def test_seeded_tokens_are_the_same_alone_and_batched_and_after_a_preemption(executor: TorchExecutor) -> None:
    prompts = prompts_of(9, 20, 31)
    driver = ExecutorDriver(executor)
    alone = []
    for prompt in prompts:
        slot = driver.admit(0, prompt, SAMPLED, seed=5, choice=1)
        alone += driver.generate([slot], 12)
        driver.release(slot)
    slots = [
        driver.admit(slot, prompt, SAMPLED, seed=5, choice=1) for slot, prompt in enumerate(prompts, start=2)
    ]
    assert driver.generate(slots, 12) == alone
    for slot, prompt, tokens in zip(slots, prompts, alone, strict=True):
        driver.release(slot)
        again = driver.admit(slot, prompt, SAMPLED, seed=5, choice=1, output=tokens[:5])
        assert driver.generate([again], 12) == [tokens]


def test_a_launch_takes_tokens_that_the_one_before_has_not_drawn_yet(executor: TorchExecutor) -> None:
    prompts = prompts_of(5, 18)
    plain = ExecutorDriver(executor)
    slots = [plain.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    expected = plain.generate(slots, 8)
    for slot in slots:
        plain.release(slot)
    plain.step(slots=[])

    driver = ExecutorDriver(executor)
    slots = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    ahead = driver.plan(dict(zip(slots, prompts, strict=True)))
    executor.launch(ahead)
    executor.sample(ahead.launch, {})
    for _ in range(7):
        following = driver.plan(
            {slot: [TokenRef(ahead.launch, row)] for row, slot in enumerate(slots)},
        )
        executor.launch(following)
        executor.sample(following.launch, {})
        driver.complete(ahead.launch)
        ahead = following
    driver.complete(ahead.launch)
    assert [driver.sequences[slot].output for slot in slots] == expected


def test_a_row_in_the_middle_of_its_prompt_gives_no_token(executor: TorchExecutor) -> None:
    driver = ExecutorDriver(executor)
    short, long = (driver.admit(slot, prompt) for slot, prompt in enumerate(prompts_of(4, 30)))
    first = driver.step(chunk_tokens=16)
    assert (len(first[short].tokens), len(first[long].tokens)) == (1, 0)
    second = driver.step(chunk_tokens=16)
    assert (len(second[short].tokens), len(second[long].tokens)) == (1, 1)
    assert all(row.logprobs == () and row.fault is None for row in second.values())


def test_logprobs_come_with_the_token_and_the_most_likely_first(executor: TorchExecutor) -> None:
    driver = ExecutorDriver(executor)
    asks = driver.admit(0, prompts_of(6)[0], replace(GREEDY, logprobs=3))
    silent = driver.admit(1, prompts_of(6)[0])
    rows = driver.step()
    assert rows[silent].logprobs == ()
    (logprob,) = rows[asks].logprobs
    assert logprob.token == rows[asks].tokens[0] == logprob.top[0][0]
    assert logprob.logprob == logprob.top[0][1] < 0
    assert len(logprob.top) == 3


def test_a_mask_leaves_only_its_tokens(executor: TorchExecutor) -> None:
    driver = ExecutorDriver(executor)
    slots = [driver.admit(slot, prompts_of(6)[0]) for slot in range(2)]
    free = driver.step()[slots[0]].tokens[0]
    words = np.zeros(512 // 32, dtype=np.uint32)
    words[40 // 32] = 1 << (40 % 32)
    rows = driver.step(masks={slots[0]: words})
    assert rows[slots[0]].tokens == (40,)
    assert free != 40
    assert rows[slots[1]].tokens != (40,)


def test_blocks_are_shared_and_copied_on_write(executor: TorchExecutor) -> None:
    (prompt,) = prompts_of(24)
    driver = ExecutorDriver(executor)
    owner = driver.admit(0, prompt)
    expected = driver.generate([owner], 10)
    shared = driver.sequences[owner].blocks[0]

    # The second slot reads the first block where it is, and gets a copy of the second, which it will write to.
    reader = driver.admit(1, prompt)
    sequence = driver.sequences[reader]
    free = driver.take_block()
    sequence.computed = len(prompt) - 1
    plan = driver.plan(
        {reader: prompt[-1:]}, copies=[BlockCopy(CopyKind.ON_DEVICE, GroupId(0), shared[1], free)]
    )
    (append,) = plan.appends
    sequence.blocks[0][:2] = [shared[0], free]
    plan = replace(plan, appends=(replace(append, blocks=(shared[0], free)),))
    driver.run(plan)
    assert driver.generate([reader], 10) == expected
    assert driver.generate([owner], 12)[0][:10] == expected[0]


def test_the_layer_hook_names_each_layer_of_each_launch_in_order(
    folder: Path, make_executor: MakeExecutor
) -> None:
    calls: list[tuple[LaunchId, int]] = []
    executor = make_executor(folder, layer_hook=lambda launch, layer: calls.append((launch, layer)))
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, prompts_of(5)[0])
    driver.generate([slot], 2)
    assert calls == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_plan_without_rows_only_applies_its_deltas(executor: TorchExecutor) -> None:
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, prompts_of(3)[0])
    driver.step()
    driver.release(slot)
    assert driver.run(driver.plan({})) == {}
    again = driver.admit(0, prompts_of(3)[0])
    assert len(driver.step()[again].tokens) == 1


def test_capabilities_tell_the_model_and_the_settings(executor: TorchExecutor) -> None:
    told = executor.capabilities
    assert (told.executor, told.device, told.weights_dtype) == ("torch", "cpu", "fp32")
    assert (told.vocab_tokens, told.max_context_tokens, told.max_batch) == (512, 2048, 8)
    assert told.kv_groups == executor.kv_groups
    assert dict(executor.kv_blocks) == {GroupId(0): 64}


def test_device_time_is_that_of_the_work_and_not_of_the_wait_for_masks(executor: TorchExecutor) -> None:
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, prompts_of(3)[0])
    plan = driver.plan({slot: prompts_of(3)[0]})
    executor.launch(plan)
    executor.sample(plan.launch, {})
    assert 0 < executor.complete(plan.launch).device_ms < 10_000


class TestMisuse:
    def test_a_third_launch_is_refused_while_two_are_open(self, executor: TorchExecutor) -> None:
        for launch in range(2):
            executor.launch(StepPlan(LaunchId(launch), ()))
        with pytest.raises(InvariantError, match="complete one first"):
            executor.launch(StepPlan(LaunchId(2), ()))

    def test_completing_before_sampling_or_what_is_not_open_is_refused(self, executor: TorchExecutor) -> None:
        executor.launch(StepPlan(LaunchId(0), ()))
        with pytest.raises(InvariantError, match="before it is sampled"):
            executor.complete(LaunchId(0))
        with pytest.raises(InvariantError, match="not open"):
            executor.complete(LaunchId(1))
        executor.sample(LaunchId(0), {})
        with pytest.raises(InvariantError, match="sampled twice"):
            executor.sample(LaunchId(0), {})

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            pytest.param({"generation": Generation(9)}, "held by generation 1", id="late-generation"),
            pytest.param({"slot": SlotId(3)}, "held by nobody", id="free-slot"),
            pytest.param({"start": 15}, "has 1 blocks", id="no-room"),
            pytest.param({"tokens": (TokenRef(LaunchId(40), 0),)}, "nothing is kept", id="unknown-reference"),
        ],
    )
    def test_a_row_that_contradicts_the_slots_stops_the_executor(
        self, executor: TorchExecutor, change: dict[str, object], match: str
    ) -> None:
        driver = ExecutorDriver(executor)
        slot = driver.admit(0, (5, 6, 7))
        plan = driver.plan({slot: (5, 6, 7)})
        wrong: RowPlan = plan.rows[0]._replace(**change)  # type: ignore[arg-type]
        with pytest.raises(InvariantError, match=match):
            driver.run(replace(plan, rows=(wrong,)))
        with pytest.raises(InvariantError, match=match):
            executor.launch(StepPlan(LaunchId(50), ()))

    def test_an_occupied_slot_cannot_be_admitted_to(self, executor: TorchExecutor) -> None:
        driver = ExecutorDriver(executor)
        driver.admit(0, (5,))
        driver.step()
        driver.admit(0, (6,))
        with pytest.raises(InvariantError, match="while generation 1 holds it"):
            driver.step()

    def test_drafts_are_not_verified(self, executor: TorchExecutor) -> None:
        driver = ExecutorDriver(executor)
        slot = driver.admit(0, (5, 6, 7))
        plan = driver.plan({slot: (5, 6, 7)})
        with pytest.raises(Unsupported, match="verifies no drafts"):
            driver.run(replace(plan, rows=(plan.rows[0]._replace(logits=3, draft_tokens=2),)))

    def test_a_swap_to_a_pool_that_is_not_there_is_refused(self, executor: TorchExecutor) -> None:
        copy = BlockCopy(CopyKind.SWAP_OUT, GroupId(0), BlockId(0), BlockId(1))
        with pytest.raises(InvariantError, match="swap_out names block 1 of group 0, which has 0 there"):
            ExecutorDriver(executor).run(StepPlan(LaunchId(0), (), copies=(copy,)))


def test_a_failed_step_is_a_device_fault_and_nothing_runs_after_it(
    executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("ridgeline_kernels.cpu.program.DecoderProgram.run", fail)
    driver = ExecutorDriver(executor)
    driver.admit(0, (5, 6))
    with pytest.raises(DeviceFault, match=r"step 0 failed on cpu: CUDA error") as caught:
        driver.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(DeviceFault):
        executor.launch(StepPlan(LaunchId(1), ()))


def test_close_ends_a_launch_that_waits_for_its_masks(folder: Path, make_executor: MakeExecutor) -> None:
    executor = make_executor(folder)
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    executor.launch(driver.plan({slot: (5, 6)}))
    executor.close()
