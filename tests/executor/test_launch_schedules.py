"""Random schedules with two launches open: each request gets the tokens it gets alone, step by step."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_engine.seam import InputToken, LaunchId, SlotId, TokenRef
from ridgeline_testing.executor_driver import GREEDY, ExecutorDriver

FIRST_SLOT = SlotId(0)
NO_REF = TokenRef(LaunchId(0), 0)
PENALISED = SamplingParams(
    max_tokens=64, temperature=0.9, top_p=0.95, repetition_penalty=1.4, frequency_penalty=0.7
)
NARROW = SamplingParams(max_tokens=64, temperature=1.2, top_k=20, presence_penalty=0.3)


@dataclass(slots=True)
class Life:
    """One request of a random schedule."""

    prompt: list[int]
    sampling: SamplingParams
    length: int
    slot: SlotId = FIRST_SLOT
    last: TokenRef = NO_REF
    """Where its newest token comes from."""
    asked: int = 0
    """Output tokens, drawn or not."""
    output: list[int] = field(default_factory=list)


def random_life(choices: random.Random) -> Life:
    return Life(
        prompt=[choices.randrange(3, 512) for _ in range(choices.randrange(1, 40))],
        sampling=choices.choice([GREEDY, PENALISED, NARROW]),
        length=choices.randrange(1, 9),
    )


class Schedule:
    """Requests come, are cut into chunks, skip steps, are cancelled with rows open, and give their slots
    away."""

    def __init__(self, executor: TorchExecutor, lives: list[Life], choices: random.Random) -> None:
        self._executor = executor
        self._driver = ExecutorDriver(executor)
        self._choices = choices
        self._waiting = list(lives)
        self._running: list[Life] = []
        self._open: list[tuple[LaunchId, dict[SlotId, Life]]] = []

    def run(self) -> None:
        while self._waiting or self._running:
            self._turn_over()
            self._launch()
            if len(self._open) == 2:
                self._complete()
        while self._open:
            self._complete()

    def _turn_over(self) -> None:
        self._running = [
            life for life in self._running if life.asked < life.length and self._choices.random() > 0.04
        ]
        busy = {life.slot for life in self._running}
        for slot in [slot for slot in self._driver.sequences if slot not in busy]:
            self._driver.release(slot)
        while self._waiting and len(self._running) < 4:
            life = self._waiting.pop(0)
            number = next(each for each in range(4) if SlotId(each) not in self._driver.sequences)
            life.slot = self._driver.admit(number, life.prompt, life.sampling, seed=3)
            self._running.append(life)

    def _launch(self) -> None:
        moving = [life for life in self._running if self._choices.random() < 0.85]
        self._choices.shuffle(moving)
        plan = self._driver.plan({life.slot: self._next_tokens(life) for life in moving})
        for number, (life, row) in enumerate(zip(moving, plan.rows, strict=True)):
            if row.start + len(row.tokens) >= len(life.prompt):
                life.last, life.asked = TokenRef(plan.launch, number), life.asked + 1
        self._executor.launch(plan)
        self._executor.sample(plan.launch, {})
        self._open.append((plan.launch, {life.slot: life for life in moving}))

    def _next_tokens(self, life: Life) -> list[InputToken]:
        computed = self._driver.sequences[life.slot].computed
        left = life.prompt[computed : computed + self._choices.choice([3, 16, 40])]
        return [*left] or [life.last]

    def _complete(self) -> None:
        launch, owners = self._open.pop(0)
        for result in self._executor.complete(launch).rows:
            owners[result.slot].output.extend(result.tokens)


@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_with_two_open_launches_gives_each_request_what_it_gets_alone(
    make_folder: Callable[..., Path], make_executor: Callable[..., TorchExecutor], seed: int
) -> None:
    executor = make_executor(make_folder(), deterministic=True)
    choices = random.Random(seed)
    lives = [random_life(choices) for _ in range(14)]
    alone = ExecutorDriver(executor)
    wanted = []
    for life in lives:
        slot = alone.admit(0, life.prompt, life.sampling, seed=3)
        wanted.append(alone.generate([slot], life.length)[0])
        alone.release(slot)
        alone.run(alone.plan({}))
    Schedule(executor, lives, choices).run()
    assert [life.output for life in lives] == [
        tokens[: life.asked] for life, tokens in zip(lives, wanted, strict=True)
    ]
    assert sum(life.asked == life.length for life in lives) > len(lives) // 2
