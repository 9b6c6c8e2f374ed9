"""Any traffic, any policies: what the scheduler promises whatever comes."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.policy.census import take_census
from ridgeline_engine.policy.victims import PREEMPTIONS
from ridgeline_engine.request import OutputRow, PriorityClass, Request, RequestKey
from ridgeline_engine.seam import StepPlan
from ridgeline_engine.settings import EngineSettings
from ridgeline_testing.fake_executor import EOS_TOKEN_ID, FAKE_STEP, FakeExecutor

MOST_PROMPT_TOKENS, MOST_OUTPUT_TOKENS = 60, 30


@dataclass(frozen=True)
class Coming:
    step: int
    prompt_tokens: int
    output_tokens: int
    tenant: str
    weight: float
    batch: bool


COMING = st.builds(
    Coming,
    step=st.integers(0, 30),
    prompt_tokens=st.integers(1, MOST_PROMPT_TOKENS),
    output_tokens=st.integers(1, MOST_OUTPUT_TOKENS),
    tenant=st.sampled_from("abc"),
    weight=st.sampled_from([1.0, 3.0]),
    batch=st.booleans(),
)
SETTINGS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["fcfs", "shortest", "fair"]),
        "preemption": st.sampled_from(PREEMPTIONS),
        "max_step_tokens": st.sampled_from([8, 17, 64]),
        "min_chunk_tokens": st.sampled_from([1, 16]),
        "tpot_target_ms": st.sampled_from([None, 0.1, 3.0, 6.0]),
        "prefix_cache": st.booleans(),
        "coefficients": st.just(FAKE_STEP),
    }
)


@dataclass
class Bench:
    """As the fixture of this folder, but made anew for every example."""

    executor: FakeExecutor
    engine: Engine
    rows: list[OutputRow] = field(default_factory=list)

    def step(self) -> None:
        self.rows += self.engine.step()
        self.engine.check()


def make_bench(changes: dict[str, Any], **executor: int) -> Bench:
    clock = VirtualClock()
    fake = FakeExecutor(clock, **executor)
    return Bench(fake, Engine(fake, clock, EngineSettings(eos_token_ids=(EOS_TOKEN_ID,), **changes)))


def _submit(bench: Bench, index: int, coming: Coming) -> None:
    request = Request(
        RequestKey(RequestId(str(index)), Attempt(0)),
        tuple((index + 7 * token) % 40 for token in range(coming.prompt_tokens)),
        SamplingParams(max_tokens=coming.output_tokens, temperature=0.0, ignore_eos=True),
        tenant=TenantId(coming.tenant),
        weight=coming.weight,
        priority=PriorityClass.BATCH if coming.batch else PriorityClass.INTERACTIVE,
    )
    bench.engine.submit(request)


def _play(bench: Bench, traffic: list[Coming]) -> int:
    """Steps until all is done. At most as many as all tokens one by one, thrice: no step is without gain."""
    left = sorted(enumerate(traffic), key=lambda each: each[1].step)
    bound = 40 + 3 * sum(each.prompt_tokens + each.output_tokens for each in traffic)
    for step in range(bound):
        while left and left[0][1].step <= step:
            _submit(bench, *left.pop(0))
        if not left and not bench.engine.has_work:
            return step
        bench.step()
    raise AssertionError(f"not done after {bound} steps")


def _check_plan(plan: StepPlan, most_tokens: int) -> None:
    assert sum(len(row.tokens) for row in plan.rows) <= most_tokens
    assert len({row.slot for row in plan.rows}) == len(plan.rows) > 0


@settings(max_examples=120, deadline=None)
@given(traffic=st.lists(COMING, min_size=1, max_size=10), chosen=SETTINGS, blocks=st.integers(6, 30))
def test_every_request_ends_within_a_bound_and_every_step_within_its_budget(
    traffic: list[Coming], chosen: dict[str, Any], blocks: int
) -> None:
    bench = make_bench(chosen, blocks=blocks, max_batch=4)
    _play(bench, traffic)
    for plan in bench.executor.plans:
        _check_plan(plan, chosen["max_step_tokens"])
    assert {row.key for row in bench.rows if row.finish is not None} == {row.key for row in bench.rows}
    scheduler: Any = bench.engine._scheduler
    assert scheduler.accounts.active() == ()


@settings(max_examples=40, deadline=None)
@given(traffic=st.lists(COMING, min_size=1, max_size=10), chosen=SETTINGS, blocks=st.integers(6, 30))
def test_the_same_traffic_gives_the_same_plans_and_the_same_trace(
    traffic: list[Coming], chosen: dict[str, Any], blocks: int
) -> None:
    played = []
    for _ in range(2):
        bench = make_bench(chosen, blocks=blocks, max_batch=4)
        _play(bench, traffic)
        played.append((bench.executor.plans, bench.rows, bench.engine.preemption_trace))
    assert played[0] == played[1]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, MOST_PROMPT_TOKENS), st.integers(1, MOST_OUTPUT_TOKENS)),
        min_size=30,
        max_size=60,
    ),
    weight=st.sampled_from([1.0, 2.0, 5.0]),
    slots=st.integers(1, 4),
)
def test_two_tenants_that_always_wait_are_never_further_apart_than_what_runs(
    lengths: list[tuple[int, int]], weight: float, slots: int
) -> None:
    bench = make_bench({"coefficients": FAKE_STEP, "tpot_target_ms": None}, blocks=60, max_batch=slots)
    half = len(lengths) // 2
    for index, (prompt, output) in enumerate(lengths):
        tenant, its_weight = ("a", 1.0) if index < half else ("b", weight)
        _submit(bench, index, Coming(0, prompt, output, tenant, its_weight, batch=False))
    scheduler: Any = bench.engine._scheduler
    accounts = {each.tenant: each for each in scheduler.accounts.active()}
    dearest_ms = 0.0
    while {each.request.tenant for each in scheduler.waiting} == {"a", "b"}:
        census = take_census(scheduler.running)
        price = scheduler.thresholds.token_costs(bench.engine.step_model, census).value
        whole_ms = price.prefill_ms(MOST_PROMPT_TOKENS, 0) + MOST_OUTPUT_TOKENS * price.decode_ms(90)
        dearest_ms = max(dearest_ms, whole_ms)
        bench.step()
        apart_ms = abs(accounts["a"].served_ms - accounts["b"].served_ms)
        assert apart_ms <= slots * dearest_ms


@settings(max_examples=60, deadline=None)
@given(traffic=st.lists(COMING, min_size=2, max_size=8), target_ms=st.sampled_from([None, 0.1]))
def test_what_decodes_runs_before_any_prompt_of_its_class(
    traffic: list[Coming], target_ms: float | None
) -> None:
    live = [Coming(each.step, each.prompt_tokens, each.output_tokens, "a", 1.0, False) for each in traffic]
    bench = make_bench(
        {"max_step_tokens": 16, "min_chunk_tokens": 1, "tpot_target_ms": target_ms}, max_batch=4
    )
    _play(bench, live)
    decoding: set[int] = set()
    for plan in bench.executor.plans:
        decoding -= set(plan.release)
        rows = [row.slot for row in plan.rows]
        assert rows[: len(decoding)] == [slot for slot in rows if slot in decoding]
        assert decoding <= set(rows)
        decoding |= {row.slot for row in plan.rows if row.logits}
