"""A completion that answers another launch is an error of the executor, and changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.seam import Generation, LaunchId, StepResult

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
PROMPT = tuple(range(20))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda result, before: before, id="the-launch-before-again"),
        pytest.param(lambda result, before: replace(result, rows=()), id="no-rows"),
        pytest.param(lambda result, before: replace(result, launch=LaunchId(99)), id="a-launch-never-made"),
    ],
)
def test_a_wrong_completion_is_refused_and_the_right_one_still_counts(
    bench: Any, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[StepResult, StepResult], StepResult]
) -> None:
    key = bench.submit("a", PROMPT, GREEDY)
    complete, results = bench.executor.complete, []
    monkeypatch.setattr(
        bench.executor, "complete", lambda launch: results.append(complete(launch)) or results[-1]
    )
    bench.step()
    assert bench.engine.launch()
    result = complete(LaunchId(results[-1].launch + 1))
    monkeypatch.setattr(bench.executor, "complete", lambda launch: spoil(result, results[-1]))
    with pytest.raises(InvariantError, match="was completed as"):
        bench.engine.complete()
    bench.engine.check()
    monkeypatch.setattr(bench.executor, "complete", lambda launch: result)
    bench.rows += bench.engine.complete()
    monkeypatch.setattr(bench.executor, "complete", complete)
    bench.run()
    alone = len(bench.output(key))
    assert alone == GREEDY.max_tokens


def _swapped(result: StepResult) -> StepResult:
    return replace(result, rows=result.rows[::-1])


def _of_an_earlier_owner(result: StepResult) -> StepResult:
    first, *others = result.rows
    return replace(result, rows=(first._replace(generation=Generation(first.generation - 1)), *others))


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(_swapped, id="rows-swapped"),
        pytest.param(_of_an_earlier_owner, id="an-earlier-owner"),
    ],
)
def test_an_answer_for_another_owner_or_slot_stops_the_engine(
    bench: Any, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[StepResult], StepResult]
) -> None:
    # Unlike prompts: an equal one would wait for the first.
    for name, prompt in (("a", PROMPT), ("b", PROMPT[::-1])):
        bench.submit(name, prompt, GREEDY)
    complete = bench.executor.complete
    monkeypatch.setattr(bench.executor, "complete", lambda launch: spoil(complete(launch)))
    with pytest.raises(InvariantError, match="answered for slot"):
        bench.engine.step()
