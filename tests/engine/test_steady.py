"""`commit(k)` leaves an engine as k single steps do, and `steady_steps` never promises too much."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import InvariantError, Unsupported
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import OutputRow, PriorityClass, Request, RequestKey
from ridgeline_engine.settings import EngineSettings
from ridgeline_testing.fake_executor import EOS_TOKEN_ID, FAKE_STEP, FakeExecutor, kv_group

LONG = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)


@dataclass(slots=True)
class Run:
    """One engine, and all that can be seen of it."""

    blocks: int = 64
    target_ms: float | None = 30.0
    caching: bool = True
    groups: tuple[Any, ...] = (kv_group(),)
    executor_kind: type[FakeExecutor] = FakeExecutor
    rows: list[OutputRow] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)
    clock: VirtualClock = field(init=False)
    executor: FakeExecutor = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.executor = self.executor_kind(self.clock, blocks=self.blocks, groups=self.groups, max_batch=6)
        chosen = EngineSettings(
            eos_token_ids=(EOS_TOKEN_ID,),
            tpot_target_ms=self.target_ms,
            prefix_cache=self.caching,
            coefficients=FAKE_STEP,
        )
        self.engine = Engine(self.executor, self.clock, chosen)

    def submit(self, number: int, tokens: int, sampling: SamplingParams, priority: PriorityClass) -> None:
        prompt = tuple((number * 7 + index) % 40 for index in range(tokens))
        key = RequestKey(RequestId(f"r{number}"), Attempt(0))
        tenant = TenantId(f"t{number % 2}")
        self.engine.submit(Request(key, prompt, sampling, tenant=tenant, priority=priority))

    def step(self, *, at_once: bool) -> None:
        """One step, or all that are alike."""
        self.engine.launch()
        steps = self.engine.steady_steps()
        self.promised.append(steps)
        self.rows += self.engine.commit(steps) if at_once and steps > 1 else self.engine.complete()
        self.engine.check()

    def seen(self) -> dict[str, object]:
        engine: Any = self.engine
        load = engine.load()
        return {
            "rows": self.rows,
            "clock": self.clock.now_ms,
            "load": load,
            "metrics": replace(engine.metrics(), last_step=None),
            "events": engine.kv_events.after(0),
            "served": sorted((each.tenant, each.served_ms) for each in engine._scheduler.accounts.active()),
            "launch": engine._pipeline.next_launch,
        }


requests = st.lists(
    st.tuples(
        st.integers(1, 60),
        st.integers(1, 60),
        st.sampled_from([0.0, 1.0]),
        st.booleans(),
        st.sampled_from(PriorityClass),
    ),
    min_size=1,
    max_size=5,
)


# The fourth comes back from a preemption with all but its last token cached: it decodes at once, but last in the step.
@example(
    asked=[
        (1, 1, 0.0, False, PriorityClass.INTERACTIVE),
        (49, 18, 0.0, False, PriorityClass.INTERACTIVE),
        (6, 28, 0.0, True, PriorityClass.INTERACTIVE),
        (44, 7, 0.0, False, PriorityClass.BATCH),
        (44, 25, 0.0, False, PriorityClass.BATCH),
    ],
    blocks=11,
    target_ms=4.0,
    caching=True,
    later=0,
    groups=(kv_group(),),
)
@settings(max_examples=60, deadline=None)
@given(
    asked=requests,
    blocks=st.integers(8, 40),
    target_ms=st.sampled_from([None, 4.0, 30.0]),
    caching=st.booleans(),
    later=st.integers(0, 3),
    groups=st.sampled_from(
        [
            (kv_group(),),
            (kv_group(), kv_group(1, block_tokens=32)),
            (kv_group(), kv_group(1, window_tokens=20)),
        ]
    ),
)
def test_at_once_or_one_by_one_it_is_the_same(
    asked: list[tuple[int, int, float, bool, PriorityClass]],
    blocks: int,
    target_ms: float | None,
    caching: bool,
    later: int,
    groups: tuple[Any, ...],
) -> None:
    one, many = (Run(blocks, target_ms, caching, groups) for _ in range(2))

    def submit(numbers: range) -> None:
        for run in (one, many):
            for number in numbers:
                tokens, most, temperature, ignore_eos, priority = asked[number]
                sampling = SamplingParams(
                    max_tokens=most, temperature=temperature, ignore_eos=ignore_eos, seed=number
                )
                run.submit(number, tokens, sampling, priority)

    first = max(1, len(asked) - later)
    submit(range(first))
    arrived = first == len(asked)
    while many.engine.has_work or not arrived:
        before = many.engine._pipeline.next_launch
        many.step(at_once=True)
        if many.engine._pipeline.next_launch == before:
            # Nothing could run; somebody may have lost his blocks all the same.
            one.step(at_once=False)
        while one.engine._pipeline.next_launch < many.engine._pipeline.next_launch:
            one.step(at_once=False)
        assert one.seen() == many.seen()
        if not arrived and (many.clock.now_ms > 20 or not many.engine.has_work):
            submit(range(first, len(asked)))
            arrived = True
    assert [list(plan.rows) for plan in one.executor.plans] == [
        list(plan.rows) for plan in many.executor.plans
    ]


def test_a_long_decode_is_steady_up_to_the_next_fit_of_the_step_model() -> None:
    run = Run(blocks=64)
    run.submit(0, 10, LONG, PriorityClass.INTERACTIVE)
    while run.engine.has_work:
        run.step(at_once=True)
    # A prompt; then up to the fits after 16, 64, 128 and 192 steps, and to the end.
    assert run.promised == [1, 15, 48, 64, 64, 8]


def test_a_step_with_a_prompt_or_with_somebody_waiting_is_not_steady() -> None:
    run = Run(blocks=64)
    run.submit(0, 10, LONG, PriorityClass.INTERACTIVE)
    run.engine.launch()
    assert run.engine.steady_steps() == 1
    run.engine.complete()
    run.engine.launch()
    assert run.engine.steady_steps() > 1
    run.submit(1, 10, LONG, PriorityClass.INTERACTIVE)
    assert run.engine.steady_steps() == 1


def test_blocks_bound_it() -> None:
    # 4 blocks of 16: texts of 20 and of 10 tokens hold 3. The second takes the last one at position 16.
    run = Run(blocks=4, caching=False)
    run.submit(0, 20, replace(LONG, max_tokens=20), PriorityClass.INTERACTIVE)
    run.submit(1, 10, replace(LONG, max_tokens=20), PriorityClass.INTERACTIVE)
    run.step(at_once=False)
    run.engine.launch()
    # The first wants one at position 32: the open launch writes its position 20, so 12 steps go up to 31.
    assert run.engine.steady_steps() == 12


def test_two_classes_or_two_launches_are_not_promised_anything() -> None:
    run = Run()
    run.submit(0, 10, LONG, PriorityClass.INTERACTIVE)
    run.submit(1, 10, LONG, PriorityClass.BATCH)
    run.step(at_once=False)
    run.step(at_once=False)
    run.engine.launch()
    assert run.engine.steady_steps() == 1
    run.engine.launch()
    assert run.engine.steady_steps() == 0


def test_more_than_was_promised_is_refused() -> None:
    run = Run()
    run.submit(0, 10, LONG, PriorityClass.INTERACTIVE)
    with pytest.raises(InvariantError, match=r"commit\(1\).*0 steps"):
        run.engine.commit(1)
    run.engine.launch()
    with pytest.raises(InvariantError, match=r"commit\(2\).*1 steps"):
        run.engine.commit(2)


class FakeSingleStepExecutor(FakeExecutor):
    again = None  # type: ignore[assignment]


def test_an_executor_that_cannot_repeat_says_so() -> None:
    run = Run(executor_kind=FakeSingleStepExecutor)
    run.submit(0, 10, LONG, PriorityClass.INTERACTIVE)
    run.step(at_once=False)
    run.engine.launch()
    with pytest.raises(Unsupported, match="cannot repeat"):
        run.engine.commit(2)
