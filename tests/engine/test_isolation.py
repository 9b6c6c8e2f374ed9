"""A fault of the host's while it works on one request ends that request alone."""

from typing import Any

import pytest
from ridgeline_contracts.errors import InvariantError
from ridgeline_contracts.sampling import SamplingParams
from ridgeline_engine.request import FinishReason
from ridgeline_engine.settings import AsyncScheduling
from ridgeline_testing.fake_executor import expected_output

GREEDY = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
BAD, GOOD = tuple(range(30)), tuple(range(7, 30))


@pytest.fixture(params=AsyncScheduling)
def engine_bench(make_bench: Any, request: pytest.FixtureRequest) -> Any:
    return make_bench({"async_scheduling": request.param})


def _spoil(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, error: Exception, skip: int = 0
) -> None:
    """Calls of `owner.name` for the bad prompt fail, but for the first `skip`."""
    real, left = getattr(owner, name), [skip]

    def spoiled(sequence: Any, *rest: Any, **named: Any) -> Any:
        if sequence.request.prompt == BAD:
            left[0] -= 1
            if left[0] < 0:
                raise error
        return real(sequence, *rest, **named)

    monkeypatch.setattr(owner, name, spoiled)


@pytest.mark.parametrize(
    ("where", "skip", "emitted"),
    [
        pytest.param("find", 0, 0, id="at-admission"),
        pytest.param("store", 0, 0, id="at-the-commit-of-its-prompt"),
        pytest.param("store", 5, 5, id="at-a-later-commit"),
    ],
)
def test_the_others_go_on(
    engine_bench: Any, monkeypatch: pytest.MonkeyPatch, where: str, skip: int, emitted: int
) -> None:
    error = ValueError(f"about {BAD}")
    _spoil(monkeypatch, engine_bench.engine._scheduler.kv, where, error=error, skip=skip)
    good = engine_bench.submit("good", GOOD, GREEDY)
    bad = engine_bench.submit("bad", BAD, GREEDY)
    engine_bench.run()
    assert engine_bench.output(good) == expected_output(GOOD, GREEDY)
    finish = engine_bench.finish(bad)
    assert finish.reason is FinishReason.ERROR
    assert "ValueError" in str(finish.error)
    assert "about" not in str(finish.error), "the text of a foreign error may hold a prompt"
    assert engine_bench.output(bad) == expected_output(BAD, GREEDY)[:emitted]
    assert finish.counts.emitted_tokens == emitted
    assert engine_bench.engine.counts().host_faults == 1
    load = engine_bench.engine.load()
    assert load.free_blocks == load.total_blocks


def test_a_broken_invariant_is_not_one_requests_affair(
    engine_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil(monkeypatch, engine_bench.engine._scheduler.kv, "store", error=InvariantError("two owners"))
    engine_bench.submit("bad", BAD, GREEDY)
    with pytest.raises(InvariantError, match="two owners"):
        engine_bench.run()


def test_a_submit_that_fails_midway_leaves_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = bench.engine._sequence

    def spoiled(family: Any, choice: int) -> Any:
        if choice == 2:
            raise ValueError("no third")
        made.append(choice)
        return real(family, choice)

    monkeypatch.setattr(bench.engine, "_sequence", spoiled)
    with pytest.raises(ValueError, match="no third"):
        bench.submit("a", GOOD, GREEDY, choices=3)
    assert made == [0, 1]
    assert not bench.engine.has_work
    bench.engine.check()
    monkeypatch.setattr(bench.engine, "_sequence", real)
    key = bench.submit("a", GOOD, GREEDY, choices=3)
    bench.run()
    assert bench.output(key, 2) == expected_output(GOOD, GREEDY, choice=2)
