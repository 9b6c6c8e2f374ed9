"""The bench of the host's time: what it asks, what it refuses to compare, and that ours runs under it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench_driver import DriverFailed
from engine_host import Line, compared, lines, measure, real_step, verdict
from host_cases import CONTEXT_TOKENS, Case, Traffic, Watch

BENCH = Path(__file__).parents[2] / "bench"
SMALL = Case.decode(32, prompt_tokens=10, warmup_steps=1, steps=8)
LARGE = Case.decode(256, prompt_tokens=10, warmup_steps=1, steps=8)
MIXED = Case("mixed, 4 sequences", 4, 10, 5, warmup_steps=1, steps=8)


@dataclass(slots=True)
class FakeSide:
    """A step takes so much, and so much more a sequence."""

    name: str
    fixed_ms: float
    us_a_sequence: float
    lost_tokens: int = 0
    asked: list[str] = field(default_factory=list)

    def ask(self, work: Mapping[str, Any]) -> dict[str, float]:
        if "prompts" in work:
            return {"seconds": 1.0 + work["output_tokens"] * self.fixed_ms / 1e3}
        case = Case.read(work)
        self.asked.append(case.name)
        step_ms = self.fixed_ms + case.sequences * self.us_a_sequence / 1e3
        tokens = case.steps * case.sequences - self.lost_tokens
        return {"seconds": case.steps * step_ms / 1e3, "steps": case.steps, "tokens": tokens, "front_ms": 0.5}

    def cpu_seconds(self) -> float:
        return 0.0


def _quiet(line: str) -> None:
    """Nothing is printed."""


def test_sides_are_asked_by_turns_and_the_first_answer_does_not_count() -> None:
    ours, peer = FakeSide("ridgeline", 0.2, 5.0), FakeSide("peer", 0.1, 20.0)
    measured = measure([ours, peer], [SMALL, LARGE], repeats=3, say=_quiet)
    assert ours.asked == peer.asked == [SMALL.name] * 4 + [LARGE.name] * 4
    assert {name: len(each) for name, each in measured.per_step_ms[LARGE.name].items()} == {
        "ridgeline": 3,
        "peer": 3,
    }
    (small, large) = compared(measured, [SMALL, LARGE], ["peer"])
    # 0.1 + 256 x 0.02 over 0.2 + 256 x 0.005.
    assert large.row()["ratio"] == pytest.approx(5.22 / 1.48, rel=1e-3)
    assert (small.unit, small.higher_is_better) == ("ms/step", False)


def test_the_slope_and_the_fixed_part_are_told_apart() -> None:
    measured = measure([FakeSide("ridgeline", 0.2, 5.0)], [SMALL, LARGE], repeats=1, say=_quiet)
    (line,) = lines(measured, [SMALL, LARGE])
    assert line == Line("ridgeline", pytest.approx(0.2), pytest.approx(5.0))
    assert line.text() == "ridgeline: 0.200 ms + 5.00 us a sequence"
    assert lines(measured, [LARGE]) == []


@pytest.mark.parametrize(
    ("us_a_sequence", "said"), [pytest.param(5.0, "met", id="fast"), pytest.param(15.0, "not met", id="slow")]
)
def test_the_goals_are_stated_with_the_figures(us_a_sequence: float, said: str) -> None:
    sides = [FakeSide("ridgeline", 0.2, us_a_sequence), FakeSide("peer", 0.1, 20.0)]
    measured = measure(sides, [LARGE], repeats=1, say=_quiet)
    aim, goal = verdict(measured, compared(measured, [LARGE], ["peer"]))
    assert aim.endswith(f", {said}")
    assert goal.endswith(f", {said}")


def test_a_side_that_paused_rows_is_no_measurement() -> None:
    with pytest.raises(DriverFailed, match="gave 1534 tokens in 8 steps"):
        measure([FakeSide("lazy", 0.1, 1.0, lost_tokens=514)], [LARGE], repeats=1, say=_quiet)
    measure([FakeSide("one-open", 0.1, 1.0, lost_tokens=256)], [LARGE], repeats=1, say=_quiet)


def test_a_mixed_case_is_compared_by_the_token() -> None:
    sides = [FakeSide("ridgeline", 1.0, 0.0), FakeSide("peer", 2.0, 0.0)]
    (row,) = compared(measure(sides, [MIXED], repeats=1, say=_quiet), [MIXED], ["peer"])
    assert (row.unit, row.ours, row.peer) == ("us/token", (pytest.approx(250.0),), (pytest.approx(500.0),))


def test_a_real_step_is_the_difference_of_two_runs() -> None:
    found = real_step(FakeSide("real", 25.0, 0.0), 0.5, steps=32, repeats=2, say=_quiet)
    assert found.step_ms == pytest.approx(25.0)
    assert found.share == pytest.approx(0.02)


def test_traffic_keeps_as_many_live_as_asked_and_repeats_itself() -> None:
    one, other = Traffic(MIXED), Traffic(MIXED)
    first = list(one.due())
    assert first == list(other.due())
    assert len(first) == 4
    assert list(one.due()) == []
    assert [output for _, _, output in first] == [1, 2, 4, 5]
    one.ended(1)
    ((name, prompt, output),) = one.due()
    assert (name, output) == ("mixed, 4 sequences-5", 5)
    assert len({len(prompt) for _, prompt, _ in (*first, (name, prompt, output))}) > 1
    assert all(output > CONTEXT_TOKENS - 50 for _, _, output in Traffic(SMALL).due())


def test_the_watch_counts_from_the_end_of_the_warm_up_and_not_what_it_is_stopped_for() -> None:
    watch = Watch(Case("c", 1, 1, 1, warmup_steps=2, steps=3))
    asked = [watch.before_step(decoding=index >= 4) for index in range(4)]
    while not watch.running:
        asked.append(watch.before_step(decoding=True))
    assert len(asked) == 4 + 3
    with watch.stopped():
        sum(range(200_000))
    assert [watch.before_step(decoding=True) for _ in range(3)] == [True, True, False]
    assert watch.answer()["steps"] == 3
    assert 0.0 <= watch.seconds < 0.5 * (watch.seconds + watch._apart)


def test_ours_runs_in_tiny_sizes_and_prints_one_object(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH / "engine_host.py"), "--quick", "--json", "--without-vllm"]
    done = subprocess.run(
        command,
        env={**os.environ, "RIDGELINE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    assert held["bench"] == "engine_host"
    assert held["rows"] == []
    assert held["real_step"] is None
    assert len(held["ours"]) == 3
    assert all(value > 0 for value in (*held["ours"].values(), *held["front_ms"].values()))
    assert [line["name"] for line in held["lines"]] == ["ridgeline"]


def test_a_missing_vllm_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "engine_host.py"), "--quick"],
        env={**os.environ, "RIDGELINE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: no vLLM here")
