"""An engine over the fake executor, on a virtual clock."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from ridgeline_contracts.clock import VirtualClock
from ridgeline_contracts.ids import Attempt, RequestId
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.engine import Engine
from ridgeline_engine.request import Finish, OutputRow, Request, RequestKey
from ridgeline_engine.settings import EngineSettings
from ridgeline_testing.fake_executor import EOS_TOKEN_ID, FakeExecutor


@dataclass(slots=True)
class Bench:
    """An engine, what is under it, and all rows it gave."""

    clock: VirtualClock
    executor: FakeExecutor
    engine: Engine
    rows: list[OutputRow] = field(default_factory=list)

    def submit(
        self, name: str, prompt: tuple[int, ...], sampling: SamplingParams, **changes: object
    ) -> RequestKey:
        key = RequestKey(RequestId(name), Attempt(0))
        self.engine.submit(Request(key, prompt, sampling, **changes))
        return key

    def step(self, times: int = 1) -> list[OutputRow]:
        given = []
        for _ in range(times):
            self.engine.check()
            given += self.engine.step()
        self.rows += given
        return given

    def run(self, *, at_most: int = 2_000) -> None:
        for _ in range(at_most):
            if not self.engine.has_work:
                self.engine.check()
                return
            self.step()
        raise AssertionError(f"still at work after {at_most} steps")

    def output(self, key: RequestKey, choice: int = 0) -> tuple[int, ...]:
        return tuple(
            token for row in self.rows if (row.key, row.choice) == (key, choice) for token in row.tokens
        )

    def finish(self, key: RequestKey, choice: int = 0) -> Finish:
        """Of the one terminal row, which must be the last."""
        mine = [row for row in self.rows if (row.key, row.choice) == (key, choice)]
        assert [row.finish is not None for row in mine] == [False] * (len(mine) - 1) + [True]
        finish = mine[-1].finish
        assert finish is not None
        return finish

    def rows_of_plan(self, index: int) -> list[tuple[int, int]]:
        """(start, tokens) of each row of a plan."""
        return [(row.start, len(row.tokens)) for row in self.executor.plans[index].rows]


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    def make(settings: dict[str, object] | None = None, **executor: object) -> Bench:
        clock = VirtualClock()
        fake = FakeExecutor(clock, **executor)
        found = EngineSettings(eos_token_ids=(EOS_TOKEN_ID,), weights_revision="w", **(settings or {}))
        return Bench(clock, fake, Engine(fake, clock, found))

    return make


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()
