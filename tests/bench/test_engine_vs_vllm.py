"""The comparison with vLLM, without vLLM: its turns, its checks and its answers to a missing peer."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench_driver import Driver, DriverFailed, DriverSpec
from engine_vs_vllm import (
    Workload,
    against_the_better,
    compare,
    driver_specs,
    floor_shares,
    measure,
    parse,
    prompts_for,
    workload_of,
)
from vllm_environment import core_list, environment, requirements_of

WORKLOAD = Workload(batches=(1, 4), repeats=3, prompt_tokens=10, output_tokens=16)
BENCH = Path(__file__).parents[2] / "bench"
ECHO = """
import json, sys
print(json.dumps({"ready": True, "version": "echo"}), flush=True)
for line in sys.stdin:
    work = json.loads(line)
    if work["output_tokens"] == 13:
        sys.exit("thirteen is too much")
    print(json.dumps({"seconds": 0.5, "output_tokens": len(work["prompts"]) * work["output_tokens"]}), flush=True)
"""


@dataclass(slots=True)
class FakeSide:
    """Takes the same time for every token; can spin while it should sleep."""

    name: str
    token_s: float
    spin_s: float = 0.0
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    cpu_s: float = 0.0

    def ask(self, work: Mapping[str, Any]) -> dict[str, float]:
        self.asked.append(work)
        tokens = len(work["prompts"]) * work["output_tokens"]
        return {"seconds": tokens * self.token_s, "output_tokens": tokens}

    def cpu_seconds(self) -> float:
        self.cpu_s += self.spin_s
        return self.cpu_s


def test_every_peer_gets_a_row_for_every_batch() -> None:
    ours, eager, compiled = FakeSide("ridgeline", 0.01), FakeSide("eager", 0.02), FakeSide("compiled", 0.005)
    found, warnings = compare(ours, [eager, compiled], WORKLOAD, say=lambda line: None)
    assert [(one.case.split(",")[0], one.peer_name, one.row()["ratio"]) for one in found] == [
        ("batch 1", "eager", 2.0),
        ("batch 1", "compiled", 0.5),
        ("batch 4", "eager", 2.0),
        ("batch 4", "compiled", 0.5),
    ]
    assert all(len(one.ours) == WORKLOAD.repeats for one in found)
    assert warnings == []


def test_rounded_weights_run_at_batch_1_alone_and_are_labelled() -> None:
    ours, int8, peer = FakeSide("ridgeline", 0.01), FakeSide("int8", 0.005), FakeSide("peer", 0.02)
    found, _ = compare(ours, [peer], WORKLOAD, say=lambda line: None, rounded=[int8])
    assert [(one.case.split(" out")[1], one.row()["ratio"]) for one in found] == [
        ("", 2.0),
        (", int8 (different weights)", 4.0),
        ("", 2.0),
    ]


def test_the_faster_peer_of_each_case_is_the_one_to_beat() -> None:
    ours, eager, compiled = FakeSide("ridgeline", 0.01), FakeSide("eager", 0.02), FakeSide("compiled", 0.015)
    found, _ = compare(ours, [eager, compiled], WORKLOAD, say=lambda line: None)
    better = against_the_better(found)
    assert [one.peer_name for one in better] == ["compiled", "compiled"]
    (share,) = floor_shares(found, {4: 200.0})
    assert (share.ours_ratio, share.peer_name) == (0.5, "compiled")
    assert share.peer_ratio == pytest.approx(1 / 3)


def test_all_sides_get_the_same_prompts_and_no_two_runs_the_same() -> None:
    ours, peer = FakeSide("ridgeline", 0.01), FakeSide("peer", 0.01)
    compare(ours, [peer], WORKLOAD, say=lambda line: None)
    by_prompt = [json.dumps(work["prompts"]) for work in ours.asked]
    assert sorted(by_prompt) == sorted(json.dumps(work["prompts"]) for work in peer.asked)
    assert len(set(by_prompt)) == len(by_prompt)


def test_prompts_are_distinct_and_hold_no_special_token() -> None:
    prompts = prompts_for(WORKLOAD, 4, 0)
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert all(len(prompt) == 10 and min(prompt) >= 100 for prompt in prompts)


def test_a_side_that_spins_while_others_run_is_named() -> None:
    spinner = FakeSide("spinner", 0.001, spin_s=10.0)
    _, warnings = compare(FakeSide("ridgeline", 0.001), [spinner], WORKLOAD, say=lambda line: None)
    (warning,) = warnings
    assert "spinner" in warning


def test_a_side_that_gives_another_number_of_tokens_is_no_measurement() -> None:
    class FakeShortSide(FakeSide):
        def ask(self, work: Mapping[str, Any]) -> dict[str, float]:
            return {"seconds": 1.0, "output_tokens": 15}

    with pytest.raises(DriverFailed, match="gave 15 tokens, 16 were asked"):
        measure(FakeShortSide("short", 1.0), [[100]], 16)


def test_a_driver_is_ready_answers_and_ends_with_its_block(tmp_path: Path) -> None:
    spec = DriverSpec("echo", (sys.executable, "-c", ECHO), (), tmp_path / "log")
    with Driver(spec, environ=os.environ) as driver:
        assert driver.ready()["version"] == "echo"
        assert measure(driver, [[1], [2]], 4) == 16.0
        assert driver.cpu_seconds() >= 0


def test_a_driver_that_dies_is_told_with_its_last_words(tmp_path: Path) -> None:
    spec = DriverSpec("echo", (sys.executable, "-c", ECHO), (), tmp_path / "log")
    with Driver(spec, environ=os.environ) as driver:
        driver.ready()
        with pytest.raises(DriverFailed, match=r"echo ended with exit code 1(.|\n)*thirteen is too much"):
            driver.ask({"prompts": [[1]], "output_tokens": 13})


def test_quick_is_one_short_run(tmp_path: Path) -> None:
    quick = workload_of(parse(["--quick"], tmp_path))
    assert (quick.batches, quick.repeats) == ((1,), 1)
    whole = workload_of(parse([], tmp_path))
    assert (whole.batches, whole.prompt_tokens, whole.output_tokens) == ((1, 8, 32), 100, 64)


def test_both_sides_run_on_the_same_cores_and_dtype(tmp_path: Path) -> None:
    options = parse(["--dtype", "fp32"], tmp_path)
    ours, int8, int4, eager, compiled = driver_specs(
        options, Path("/vllm/python"), (0, 1), tmp_path, tmp_path
    )
    flags = dict(zip(ours.command[2::2], ours.command[3::2], strict=True))
    assert (flags["--dtype"], flags["--threads"]) == ("fp32", "2")
    assert dict(ours.environment)["OMP_NUM_THREADS"] == "2"
    assert dict(eager.environment)["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert [each.command for each in (int8, int4)] == [
        (*ours.command, "--weights", each.name) for each in (int8, int4)
    ]
    assert (eager.name, compiled.name) == ("vllm-eager", "vllm-compiled")
    assert "float32" in eager.command
    assert "float32" in compiled.command


@pytest.mark.parametrize(
    ("cores", "text"), [((0, 1, 2), "0-2"), ((3,), "3"), ((0, 2), "0,2"), ((2, 1), "1-2")]
)
def test_cores_are_written_as_vllm_reads_them(cores: tuple[int, ...], text: str) -> None:
    assert core_list(cores) == text


def test_vllm_sleeps_when_idle_and_sees_no_other_environment() -> None:
    variables = dict(environment((0, 1), kv_gib=1))
    assert variables["OMP_WAIT_POLICY"] == "passive"
    assert variables["PYTHONPATH"] == ""


def test_requirements_leave_out_extras_and_the_torch_family() -> None:
    metadata = (
        "Metadata-Version: 2.1\r\nName: vllm-cpu\r\nRequires-Dist: numpy<3\r\nRequires-Dist: torch==2.13.0+cpu\r\n"
        "Requires-Dist: torchvision==1\r\nRequires-Dist: torch-like>=1\r\n"
        'Requires-Dist: datasets; extra == "bench"\r\nRequires-Dist: ninja; platform_machine == "x86_64"\r\n\r\nBody'
    )
    assert requirements_of(metadata) == ["numpy<3", "torch-like>=1", 'ninja; platform_machine == "x86_64"']


@pytest.mark.parametrize(
    ("has_model", "words"),
    [pytest.param(False, "no model in", id="model"), pytest.param(True, "no vLLM", id="vllm")],
)
def test_what_is_missing_is_one_line_and_exit_code_2(tmp_path: Path, has_model: bool, words: str) -> None:
    model = tmp_path / "models" / "smollm2-135m-instruct"
    model.mkdir(parents=True)
    if has_model:
        (model / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, str(BENCH / "engine_vs_vllm.py"), "--quick", "--json"],
        env={**os.environ, "RIDGELINE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {words}")
    assert done.stderr.count("\n") == 1
