"""Two launches open: the second takes tokens that the first has not drawn, and gives what step by step gives."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ridgeline_contracts.errors import DeviceFault, InvariantError
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.sampler_oracle import FAULT_NO_TOKEN
from ridgeline_engine.seam import (
    InputToken,
    LaunchId,
    RowResult,
    SlotId,
    StepPlan,
    TokenMask,
    TokenRef,
)
from ridgeline_kernels.cpu.program import DecoderProgram
from ridgeline_testing.executor_driver import GREEDY, ExecutorDriver

MakeExecutor = Callable[..., TorchExecutor]
VOCAB = 512
NO_MASKS: Mapping[SlotId, TokenMask] = {}
EXACT = [
    pytest.param({"dtype": "fp32", "deterministic": True}, id="fp32"),
    pytest.param({"dtype": "bf16", "deterministic": True}, id="bf16"),
    pytest.param({"dtype": "bf16", "weights": "int8", "deterministic": True}, id="int8"),
    pytest.param({"dtype": "bf16", "weights": "int4", "deterministic": True}, id="int4"),
]
STATEFUL = SamplingParams(
    max_tokens=64,
    min_tokens=3,
    temperature=0.9,
    top_p=0.95,
    repetition_penalty=1.4,
    frequency_penalty=0.7,
    presence_penalty=0.3,
    logprobs=4,
    stop_token_ids=(7, 8),
)


@pytest.fixture(scope="module")
def folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder()


@pytest.fixture
def executor(folder: Path, make_executor: MakeExecutor) -> TorchExecutor:
    return make_executor(folder, deterministic=True)


def prompts_of(*lengths: int) -> list[list[int]]:
    choices = random.Random(11)
    return [[choices.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


def allow(*tokens: int) -> TokenMask:
    words = np.zeros(VOCAB // 32, dtype=np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return words


def refs(launch: LaunchId, rows: Mapping[SlotId, int]) -> dict[SlotId, list[InputToken]]:
    return {slot: [TokenRef(launch, row)] for slot, row in rows.items()}


def start(executor: TorchExecutor, plan: StepPlan, masks: Mapping[SlotId, TokenMask] | None) -> StepPlan:
    """Launches; samples unless `masks` is None."""
    executor.launch(plan)
    if masks is not None:
        executor.sample(plan.launch, masks)
    return plan


def step_by_step(
    executor: TorchExecutor, prompts: list[list[int]], sampling: SamplingParams, *, tokens: int
) -> list[list[RowResult]]:
    """By prompt: what each of its steps gives, one launch open at a time. Leaves the slots free."""
    driver = ExecutorDriver(executor)
    slots = [
        driver.admit(slot, prompt, sampling, seed=slot, eos_token_ids=(9,))
        for slot, prompt in enumerate(prompts)
    ]
    steps = [driver.step() for _ in range(tokens)]
    for slot in slots:
        driver.release(slot)
    driver.run(driver.plan({}))
    return [[found[slot] for found in steps] for slot in slots]


def said(rows: list[RowResult]) -> list[tuple[object, ...]]:
    """Rows without their generation, which a second owner of the slot cannot share."""
    return [(row.slot, row.tokens, row.logprobs, row.fault) for row in rows]


@pytest.mark.parametrize("fields", EXACT)
def test_penalties_logprobs_and_draws_see_the_token_that_was_only_referred_to(
    folder: Path, make_executor: MakeExecutor, fields: dict[str, Any]
) -> None:
    executor = make_executor(folder, **fields)
    prompts = prompts_of(5, 18, 33)
    expected = step_by_step(executor, prompts, STATEFUL, tokens=12)
    driver = ExecutorDriver(executor)
    slots = [
        driver.admit(slot, prompt, STATEFUL, seed=slot, eos_token_ids=(9,))
        for slot, prompt in enumerate(prompts)
    ]
    ahead = start(executor, driver.plan(dict(zip(slots, prompts, strict=True))), NO_MASKS)
    found = []
    for _ in range(11):
        following = driver.plan(refs(ahead.launch, {slot: row for row, slot in enumerate(slots)}))
        start(executor, following, NO_MASKS)
        found.append(driver.complete(ahead.launch))
        ahead = following
    found.append(driver.complete(ahead.launch))
    for slot, wanted in zip(slots, expected, strict=True):
        assert said([step[slot] for step in found]) == said(wanted)


@pytest.mark.parametrize("fields", EXACT)
def test_a_step_with_references_is_one_native_call(
    folder: Path, make_executor: MakeExecutor, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(folder, **fields)
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, prompts_of(5)[0])
    calls: list[int] = []
    run = DecoderProgram.run

    def counted(self: DecoderProgram, step: Any, first: int, last: int) -> None:
        calls.append(step.fields.rows)
        run(self, step, first, last)

    monkeypatch.setattr(DecoderProgram, "run", counted)
    first = start(executor, driver.plan({slot: prompts_of(5)[0]}), NO_MASKS)
    second = start(executor, driver.plan(refs(first.launch, {slot: 0})), NO_MASKS)
    driver.complete(first.launch)
    driver.complete(second.launch)
    assert calls == [5, 1]


def test_masks_of_both_open_launches_may_come_late_and_depend_on_the_token_before(
    executor: TorchExecutor,
) -> None:
    (prompt, other) = prompts_of(6, 9)

    def following(token: int) -> TokenMask:
        """As a grammar does: what may come depends on what came."""
        return allow(*((token * 5 + step) % VOCAB for step in range(1, 8)))

    driver = ExecutorDriver(executor)
    masked, free = (driver.admit(slot, ids) for slot, ids in enumerate((prompt, other)))
    masks = {masked: following(1)}
    for _ in range(6):
        masks = {masked: following(driver.step(masks=masks)[masked].tokens[0])}
    expected = {slot: driver.sequences[slot].output for slot in (masked, free)}
    for slot in (masked, free):
        driver.release(slot)
    driver.run(driver.plan({}))

    driver = ExecutorDriver(executor)
    masked, free = (driver.admit(slot, ids) for slot, ids in enumerate((prompt, other)))
    ahead = start(executor, driver.plan({masked: prompt, free: other}), None)
    masks = {masked: following(1)}
    for _ in range(5):
        following_plan = start(executor, driver.plan(refs(ahead.launch, {masked: 0, free: 1})), None)
        executor.sample(ahead.launch, masks)
        masks = {masked: following(driver.complete(ahead.launch)[masked].tokens[0])}
        ahead = following_plan
    executor.sample(ahead.launch, masks)
    driver.complete(ahead.launch)
    assert {slot: driver.sequences[slot].output for slot in (masked, free)} == expected


def test_a_reference_counts_all_rows_also_those_in_the_middle_of_a_prompt(executor: TorchExecutor) -> None:
    long, short = prompts_of(40, 4)
    expected = step_by_step(executor, [short], GREEDY, tokens=3)[0]
    driver = ExecutorDriver(executor)
    filling, running = driver.admit(1, long), driver.admit(0, short)
    first = start(executor, driver.plan({filling: long[:16], running: short}), NO_MASKS)
    rows = {filling: long[16:32], running: [TokenRef(first.launch, 1)]}
    second = start(executor, driver.plan(rows), NO_MASKS)
    found = [driver.complete(first.launch)]
    third = start(
        executor, driver.plan({running: [TokenRef(second.launch, 1)], filling: long[32:]}), NO_MASKS
    )
    found += [driver.complete(second.launch), driver.complete(third.launch)]
    assert said([step[running] for step in found]) == said(expected)
    assert [len(step[filling].tokens) for step in found] == [0, 0, 1]


def test_a_slot_passes_to_its_next_owner_while_the_last_launch_of_the_one_before_is_open(
    executor: TorchExecutor,
) -> None:
    """Both owners have penalties: the second must not see what the first one's open launch still counts."""
    first_prompt, second_prompt, beside_prompt = prompts_of(7, 12, 20)
    alone = [step_by_step(executor, [ids], STATEFUL, tokens=4)[0] for ids in (first_prompt, second_prompt)]
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, first_prompt, STATEFUL, eos_token_ids=(9,))
    beside = driver.admit(1, beside_prompt)
    ahead = start(executor, driver.plan({beside: beside_prompt, slot: first_prompt}), NO_MASKS)
    owner = driver.sequences[slot].admit
    driver.release(slot)
    driver.admit(0, second_prompt, STATEFUL, eos_token_ids=(9,))
    rows = {slot: second_prompt, beside: [TokenRef(ahead.launch, 0)]}
    found = []
    plan = start(executor, driver.plan(rows), NO_MASKS)
    last_of_first = driver.complete(ahead.launch)[slot]
    for _ in range(3):
        following = start(executor, driver.plan(refs(plan.launch, {slot: 0})), NO_MASKS)
        found.append(driver.complete(plan.launch)[slot])
        plan = following
    found.append(driver.complete(plan.launch)[slot])
    assert last_of_first.generation == owner.generation != found[0].generation
    assert said([last_of_first]) == said(alone[0][:1])
    assert said(found) == said(alone[1])


def test_the_row_of_a_slot_that_faulted_runs_on_without_harm_to_the_others(executor: TorchExecutor) -> None:
    bad, good, next_one = prompts_of(5, 17, 9)
    expected = step_by_step(executor, [good], STATEFUL, tokens=3)[0]
    expected_next = step_by_step(executor, [next_one], GREEDY, tokens=2)[0]
    driver = ExecutorDriver(executor)
    kept, faulted = driver.admit(0, good, STATEFUL, eos_token_ids=(9,)), driver.admit(1, bad, STATEFUL)
    first = start(executor, driver.plan({faulted: bad, kept: good}), {faulted: allow()})
    second = start(executor, driver.plan(refs(first.launch, {faulted: 0, kept: 1})), NO_MASKS)
    found = [driver.complete(first.launch)]
    assert found[0][faulted].fault == FAULT_NO_TOKEN
    driver.release(faulted)
    driver.admit(1, next_one)
    rows = {kept: [TokenRef(second.launch, 1)], faulted: next_one}
    third = start(executor, driver.plan(rows), NO_MASKS)
    found += [driver.complete(second.launch), driver.complete(third.launch)]
    assert said([step[kept] for step in found]) == said(expected)
    assert found[2][faulted].tokens == expected_next[0].tokens


@dataclass(slots=True)
class FailingStep:
    """Makes the native call of one launch fail, and notes which were begun."""

    fails_at: int
    begun: int = 0
    run: Callable[..., None] = field(default=DecoderProgram.run)

    def __call__(self, program: DecoderProgram, *arguments: Any) -> None:
        self.begun += 1
        if self.begun == self.fails_at:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        self.run(program, *arguments)


@pytest.mark.parametrize("second_is_sampled", [True, False])
def test_a_device_fault_ends_the_launch_behind_it_before_it_touches_the_device(
    executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch, second_is_sampled: bool
) -> None:
    failing = FailingStep(fails_at=1)
    monkeypatch.setattr(DecoderProgram, "run", lambda *arguments: failing(*arguments))
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    first = start(executor, driver.plan({slot: (5, 6)}), NO_MASKS)
    second = start(
        executor, driver.plan(refs(first.launch, {slot: 0})), NO_MASKS if second_is_sampled else None
    )
    with pytest.raises(DeviceFault, match="step 0 failed on cpu: CUDA error") as first_error:
        driver.complete(first.launch)
    with pytest.raises(DeviceFault) as second_error:
        driver.complete(second.launch)
    assert second_error.value is first_error.value
    assert failing.begun == 1
    with pytest.raises(DeviceFault):
        executor.launch(StepPlan(LaunchId(50), ()))


def test_a_device_fault_of_the_second_launch_leaves_the_first_ones_tokens(
    executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = step_by_step(executor, [[5, 6]], GREEDY, tokens=1)[0]
    failing = FailingStep(fails_at=2)
    monkeypatch.setattr(DecoderProgram, "run", lambda *arguments: failing(*arguments))
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    first = start(executor, driver.plan({slot: (5, 6)}), NO_MASKS)
    second = start(executor, driver.plan(refs(first.launch, {slot: 0})), NO_MASKS)
    assert driver.complete(first.launch)[slot].tokens == expected[0].tokens
    with pytest.raises(DeviceFault, match=f"step {second.launch} failed on cpu"):
        driver.complete(second.launch)


@pytest.mark.parametrize(
    "sampled",
    [
        pytest.param((), id="neither-sampled"),
        pytest.param((0,), id="first-sampled"),
        pytest.param((1,), id="second-sampled"),
        pytest.param((0, 1), id="both-sampled"),
    ],
)
def test_close_ends_two_open_launches(executor: TorchExecutor, sampled: tuple[int, ...]) -> None:
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    first = start(executor, driver.plan({slot: (5, 6)}), None)
    second = start(executor, driver.plan(refs(first.launch, {slot: 0})), None)
    for number in sampled:
        executor.sample((first, second)[number].launch, NO_MASKS)
    executor.close()
    with pytest.raises(InvariantError, match="is not open"):
        executor.complete(first.launch)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        pytest.param(1, "past its 1", id="past-the-rows"),
        pytest.param(-1, "past its 1", id="negative"),
    ],
)
def test_a_reference_to_a_row_that_is_not_there_is_refused(
    executor: TorchExecutor, row: int, match: str
) -> None:
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    first = start(executor, driver.plan({slot: (5, 6)}), NO_MASKS)
    second = start(executor, driver.plan(refs(first.launch, {slot: row})), NO_MASKS)
    driver.complete(first.launch)
    with pytest.raises(InvariantError, match=match):
        driver.complete(second.launch)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(np.zeros(15, dtype=np.uint32), id="too-short"),
        pytest.param(np.zeros(17, dtype=np.uint32), id="too-long"),
        pytest.param(np.zeros(16, dtype=np.int64), id="not-words"),
    ],
)
def test_a_mask_of_another_vocabulary_is_refused_and_leaves_the_launch_to_be_sampled(
    executor: TorchExecutor, mask: Any
) -> None:
    driver = ExecutorDriver(executor)
    slot = driver.admit(0, (5, 6))
    plan = start(executor, driver.plan({slot: (5, 6)}), None)
    with pytest.raises(
        InvariantError, match=r"token mask of slot 0 .* a vocabulary of 512 wants uint32 \[16\]"
    ):
        executor.sample(plan.launch, {slot: mask})
    executor.sample(plan.launch, NO_MASKS)
    assert len(driver.complete(plan.launch)[slot].tokens) == 1
