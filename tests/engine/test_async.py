"""Two launches open: the next step is planned and handed over while one runs, and no text changes by it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import FinishReason, Request, RequestKey
from ridgeline_engine.sampler_oracle import SamplerRow, sample_row
from ridgeline_engine.seam import StepPlan, TokenMask, TokenRef
from ridgeline_engine.settings import AsyncScheduling, EngineSettings
from ridgeline_testing.fake_executor import (
    EOS_TOKEN_ID,
    VOCAB_TOKENS,
    FakeExecutor,
    expected_output,
    fake_logits,
)

GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
GREEDY_LONG = SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)
PROMPT = tuple(range(20))
ON = {"async_scheduling": AsyncScheduling.ON}


@pytest.fixture
def make_overlapped(make_bench: Callable[..., Any]) -> Callable[..., Any]:
    return lambda settings=None, **executor: make_bench({**ON, **(settings or {})}, **executor)


@pytest.fixture
def overlapped(make_overlapped: Callable[..., Any]) -> Any:
    return make_overlapped()


def _ends_at_eos() -> tuple[int, ...]:
    """A prompt whose sampled text ends itself within a few tokens."""
    sampling = SamplingParams(max_tokens=12, temperature=0.0)
    return next(
        prompt
        for prompt in (tuple((start + index) % VOCAB_TOKENS for index in range(18)) for start in range(40))
        if 3 <= len(expected_output(prompt, sampling)) < 12
    )


def test_the_next_step_is_handed_over_before_the_last_one_is_known(overlapped: Any) -> None:
    key = overlapped.submit("a", PROMPT, GREEDY)
    overlapped.step()
    first, second = overlapped.executor.plans
    assert overlapped.executor.open_launches == 1
    assert first.rows[0].tokens == PROMPT
    assert second.rows[0].tokens == (TokenRef(first.launch, 0),)
    assert second.rows[0].output_position == 1
    overlapped.run()
    assert overlapped.output(key) == expected_output(PROMPT, GREEDY)


def test_a_text_that_ends_at_its_length_wastes_nothing(overlapped: Any) -> None:
    key = overlapped.submit("a", PROMPT, GREEDY)
    overlapped.run()
    assert overlapped.finish(key).reason is FinishReason.LENGTH
    happened = overlapped.engine.counts()
    assert (happened.wasted_rows, happened.late_results) == (0, 0)
    assert sum(len(plan.rows) for plan in overlapped.executor.plans) == GREEDY.max_tokens


def test_an_end_token_costs_one_wasted_row_which_is_counted(overlapped: Any) -> None:
    prompt, sampling = _ends_at_eos(), SamplingParams(max_tokens=12, temperature=0.0)
    expected = expected_output(prompt, sampling)
    key = overlapped.submit("a", prompt, sampling)
    overlapped.run()
    assert overlapped.output(key) == expected
    counts = overlapped.finish(key).counts
    assert counts.emitted_tokens == counts.accepted_tokens == len(expected)
    happened = overlapped.engine.counts()
    assert (happened.wasted_rows, happened.late_results) == (1, 1)
    assert sum(len(plan.rows) for plan in overlapped.executor.plans) == len(expected) + 1


def test_switched_off_nothing_is_wasted_and_nothing_overlaps(bench: Any) -> None:
    prompt, sampling = _ends_at_eos(), SamplingParams(max_tokens=12, temperature=0.0)
    bench.submit("a", prompt, sampling)
    bench.run()
    assert bench.engine.counts().wasted_rows == 0
    assert not any(isinstance(token, TokenRef) for plan in bench.executor.plans for token in _tokens(plan))


def _tokens(plan: StepPlan) -> list[object]:
    return [token for row in plan.rows for token in row.tokens]


def test_the_trace_is_the_same_each_time(make_overlapped: Callable[..., Any]) -> None:
    def run() -> tuple[StepPlan, ...]:
        made = make_overlapped(blocks=6, max_batch=3)
        for name in range(6):
            made.submit(f"r{name}", PROMPT[: 5 + 2 * name], GREEDY)
        made.run()
        return tuple(made.executor.plans)

    assert run() == run()


def test_a_request_cancelled_between_launch_and_completion_gives_its_id_to_the_next(overlapped: Any) -> None:
    key = overlapped.submit("a", PROMPT, GREEDY)
    overlapped.step(2)
    assert overlapped.engine.cancel(key)
    ended = overlapped.engine.complete()
    assert [row.finish.reason for row in ended if row.finish] == [FinishReason.CANCELLED]
    overlapped.rows.clear()
    again = overlapped.submit("a", PROMPT[:9], GREEDY)
    assert again == key
    overlapped.run()
    assert overlapped.output(again) == expected_output(PROMPT[:9], GREEDY)
    assert overlapped.engine.counts().wasted_rows == 0


def test_one_preempted_with_its_row_open_samples_the_same_token_again(
    make_overlapped: Callable[..., Any],
) -> None:
    made = make_overlapped({"preemption": "recompute"}, blocks=6)
    sampling = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True, seed=5)
    keys = [made.submit(f"r{name}", tuple(range(name, name + 14)), sampling) for name in range(4)]
    made.run()
    assert made.engine.metrics().preemptions > 0
    assert made.engine.counts().late_results > 0
    for name, key in enumerate(keys):
        assert made.output(key) == expected_output(tuple(range(name, name + 14)), sampling, seed=5)


def test_a_row_fault_ends_one_request_and_what_was_launched_behind_it_is_dropped(overlapped: Any) -> None:
    overlapped.executor.faults[PROMPT] = "its logits are not finite"
    bad = overlapped.submit("bad", PROMPT, GREEDY)
    good = overlapped.submit("good", PROMPT[:7], GREEDY)
    overlapped.run()
    assert overlapped.finish(bad).reason is FinishReason.ERROR
    assert overlapped.output(bad) == ()
    assert overlapped.output(good) == expected_output(PROMPT[:7], GREEDY)


def test_steps_that_overlap_are_timed_from_the_end_of_the_one_before(overlapped: Any) -> None:
    overlapped.submit("a", PROMPT, GREEDY)
    overlapped.run()
    assert overlapped.engine.metrics().step_ms == pytest.approx(overlapped.clock.now_ms)


class SlowHostClock(VirtualClock):
    """Each look at the clock costs host time."""

    def monotonic_ms(self) -> float:
        self.advance(0.2)
        return super().monotonic_ms()


@pytest.mark.parametrize(("share", "overlaps"), [(0.0, True), (1.0, False)])
def test_auto_overlaps_where_the_hosts_time_can_be_hidden(share: float, overlaps: bool) -> None:
    clock = SlowHostClock()
    executor = FakeExecutor(clock)
    engine = Engine(executor, clock, EngineSettings(eos_token_ids=(EOS_TOKEN_ID,), host_share_ratio=share))
    key = RequestKey(RequestId("a"), Attempt(0))
    engine.submit(Request(key, PROMPT, SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    refs = [token for plan in executor.plans for token in _tokens(plan) if isinstance(token, TokenRef)]
    assert bool(refs) is overlaps
    assert any("open launches" in line for line in engine.derivations())


@dataclass(slots=True)
class FakeMasks:
    """Allows every third token, from where the last one left off; keeps what it was asked."""

    engine: list[Engine] = field(default_factory=list)
    asked: list[tuple[int, ...]] = field(default_factory=list)
    fails_at: int | None = None

    def constrains(self, request: Request) -> bool:
        return request.key.request_id.startswith("masked")

    def mask(self, request: Request, choice: int, output: tuple[int, ...]) -> TokenMask:
        self.asked.append(output)
        if len(output) == self.fails_at:
            raise KeyError("no such state")
        return _mask(output)


def _mask(output: tuple[int, ...]) -> TokenMask:
    allowed = np.zeros(64, dtype=np.bool_)
    allowed[(sum(output) % 3) : VOCAB_TOKENS : 3] = True
    return np.packbits(allowed, bitorder="little").view(np.uint32)


def _masked_output(prompt: tuple[int, ...]) -> tuple[int, ...]:
    output: tuple[int, ...] = ()
    while len(output) < GREEDY.max_tokens:
        row = SamplerRow(GREEDY, 0, 0, prompt, output, (), _mask(output))
        token = sample_row(fake_logits([*prompt, *output]), row).token
        assert token is not None
        output += (token,)
    return output


@pytest.mark.parametrize("overlap", [AsyncScheduling.ON, AsyncScheduling.OFF])
def test_a_mask_is_made_from_the_token_before_and_others_do_not_wait_for_it(overlap: AsyncScheduling) -> None:
    clock, masks = VirtualClock(), FakeMasks()
    settings = EngineSettings(eos_token_ids=(EOS_TOKEN_ID,), async_scheduling=overlap)
    engine = Engine(FakeExecutor(clock), clock, settings, masks=masks)
    masked, free = (RequestKey(RequestId(name), Attempt(0)) for name in ("masked", "free"))
    engine.submit(Request(masked, PROMPT, GREEDY))
    engine.submit(Request(free, PROMPT, GREEDY))
    outputs: dict[RequestKey, tuple[int, ...]] = {masked: (), free: ()}
    while engine.has_work:
        for row in engine.step():
            outputs[row.key] += row.tokens
    assert outputs[masked] == _masked_output(PROMPT)
    assert outputs[free] == expected_output(PROMPT, GREEDY)
    assert masks.asked == [outputs[masked][:end] for end in range(GREEDY.max_tokens)]


@pytest.mark.parametrize("overlap", [AsyncScheduling.ON, AsyncScheduling.OFF])
@pytest.mark.parametrize("fails_at", [0, 4])
def test_a_mask_that_cannot_be_made_ends_its_request_alone(overlap: AsyncScheduling, fails_at: int) -> None:
    clock = VirtualClock()
    settings = EngineSettings(eos_token_ids=(EOS_TOKEN_ID,), async_scheduling=overlap)
    engine = Engine(FakeExecutor(clock), clock, settings, masks=FakeMasks(fails_at=fails_at))
    masked, free = (RequestKey(RequestId(name), Attempt(0)) for name in ("masked", "free"))
    engine.submit(Request(masked, PROMPT, GREEDY))
    engine.submit(Request(free, PROMPT, GREEDY))
    rows = []
    while engine.has_work:
        rows += engine.step()
        engine.check()
    ended = {row.key: row.finish for row in rows if row.finish}
    assert ended[masked].reason is FinishReason.ERROR
    assert "KeyError" in str(ended[masked].error)
    assert "no such state" not in str(ended[masked].error)
    assert ended[masked].counts.emitted_tokens == fails_at
    assert ended[free].reason is FinishReason.LENGTH
    assert engine.counts().host_faults == 1


def test_pages_and_slot_of_a_preempted_row_wait_for_its_launch(
    make_overlapped: Callable[..., Any],
) -> None:
    made = make_overlapped({"preemption": "recompute", "prefix_cache": False}, blocks=6)
    for name in range(3):
        made.submit(f"r{name}", tuple(range(name, name + 14)), GREEDY_LONG)
    scheduler: Any = made.engine._scheduler
    made.engine.launch()
    while not scheduler.preemptions:
        # Always one open while the next is planned.
        made.engine.launch()
        if not scheduler.preemptions:
            made.rows += made.engine.complete()
    counts = scheduler.kv.pool.counts(0)
    assert made.executor.open_launches >= 1
    assert counts.quarantined > 0
    free_slots = scheduler.slots.free
    while made.executor.open_launches:
        made.rows += made.engine.complete()
    assert scheduler.kv.pool.counts(0).quarantined == 0
    assert scheduler.slots.free == free_slots + 1
