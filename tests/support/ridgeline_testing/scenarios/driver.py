"""Runs arrivals through an engine on a virtual clock, and measures what each request saw."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil

from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.errors import Overloaded
from ridgeline_contracts.ids import Attempt, RequestId, TenantId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_contracts.step import StepCoefficients
from ridgeline_engine.engine import Engine
from ridgeline_engine.policy.preemption_log import PreemptionRecord
from ridgeline_engine.request import PriorityClass, Request, RequestKey
from ridgeline_engine.settings import EngineSettings

from ridgeline_testing.scenarios.executor import StepModelExecutor

MODEL = StepCoefficients(
    base_ms=8.0,
    per_row_ms=0.02,
    per_context_token_ms=5e-5,
    per_prefill_token_ms=0.03,
    per_prefill_context_ms=1e-6,
)
"""About an 8-billion-parameter model on one large GPU: 16 GB of weights read, 128 KiB of KV a token."""
_MOST_STEPS = 200_000


@dataclass(frozen=True, slots=True)
class Arrival:
    at_ms: float
    name: str
    prompt_tokens: int
    output_tokens: int
    tenant: str = ""
    priority: PriorityClass = PriorityClass.INTERACTIVE
    weight: float = 1.0
    prompt_start: int = 0
    """Where in the vocabulary the prompt starts to count: prompts of equal starts share a prefix."""

    def request(self) -> Request:
        prompt = tuple((self.prompt_start + index) % 31_000 for index in range(self.prompt_tokens))
        return Request(
            RequestKey(RequestId(self.name), Attempt(0)),
            prompt,
            SamplingParams(max_tokens=self.output_tokens, ignore_eos=True),
            tenant=TenantId(self.tenant),
            weight=self.weight,
            priority=self.priority,
        )


@dataclass(slots=True)
class Seen:
    """One request, from outside."""

    arrival: Arrival
    token_times_ms: list[float] = field(default_factory=list)
    preemptions: int = 0
    retry_after_ms: int | None = None
    """Set where it was refused."""
    finished: bool = False

    @property
    def ttft_ms(self) -> float:
        return self.token_times_ms[0] - self.arrival.at_ms

    @property
    def gaps_ms(self) -> list[float]:
        times = self.token_times_ms
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    @property
    def tpot_ms(self) -> float:
        gaps = self.gaps_ms
        return sum(gaps) / len(gaps)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the engine runs on."""

    blocks: int = 20_000
    max_batch: int = 256
    host_blocks: int = 0
    model: StepCoefficients = MODEL


@dataclass(frozen=True, slots=True)
class Outcome:
    seen: dict[str, Seen]
    total_ms: float
    longest_step_ms: float
    prefilled_tokens: int
    preemptions: tuple[PreemptionRecord, ...]

    def some(self, prefix: str) -> list[Seen]:
        """Requests whose names start so."""
        return [each for name, each in self.seen.items() if name.startswith(prefix)]


def run(arrivals: Iterable[Arrival], settings: EngineSettings, machine: Machine) -> Outcome:
    """Until all is finished. Raises AssertionError where that does not happen within 200,000 steps."""
    clock = VirtualClock()
    executor = StepModelExecutor(
        clock,
        machine.model,
        blocks=machine.blocks,
        max_batch=machine.max_batch,
        host_blocks=machine.host_blocks,
    )
    engine = Engine(executor, clock, settings)
    coming = sorted(arrivals, key=lambda each: each.at_ms)
    seen = {each.name: Seen(each) for each in coming}
    for _ in range(_MOST_STEPS):
        while coming and coming[0].at_ms <= clock.now_ms:
            _submit(engine, seen[coming.pop(0).name])
        if not engine.has_work:
            if not coming:
                break
            clock.advance(coming[0].at_ms - clock.now_ms)
            continue
        for row in engine.step():
            found = seen[row.key.request_id]
            found.token_times_ms += [clock.now_ms] * len(row.tokens)
            if row.finish is not None:
                found.finished, found.preemptions = True, row.finish.clocks.preemptions
    assert not engine.has_work, "admitted work did not finish"
    engine.check()
    return Outcome(
        seen, clock.now_ms, executor.longest_step_ms, executor.prefilled_tokens, engine.preemption_trace
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]


def _submit(engine: Engine, found: Seen) -> None:
    try:
        engine.submit(found.arrival.request())
    except Overloaded as refused:
        found.retry_after_ms = refused.retry_after_ms
