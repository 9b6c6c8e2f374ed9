"""Our floor against aiconfigurator's estimates, for Qwen3 32B in BF16 on H100 SXM and B200: it must lie below all.

    python bench/aiconfigurator_check.py [--venv DIR] [--quick] [--json] [--write]

aiconfigurator interpolates measured kernels, so its times are what a good engine reaches; ours are what the data
sheet allows. Also compares how many more tokens/s a B200 gives than an H100 within TTFT 1 s and TPOT 30 ms. It runs
in a virtual environment of its own, made with pip where it is missing. Exit code 1 where the check does not hold.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline_roofline.catalogue.formats import Formats
from ridgeline_roofline.catalogue.gpus import gpu_named
from ridgeline_roofline.catalogue.links import link_named
from ridgeline_roofline.catalogue.models import model_named
from ridgeline_roofline.serving import REFERENCE_WORKLOAD, served
from ridgeline_roofline.step.batch import decode_batch, prompt_batch
from ridgeline_roofline.step.layout import Layout
from ridgeline_roofline.step.timing import RooflineStepModel, fabric_of

VERSION = "0.12.0"
MODEL, THEIR_MODEL = "qwen3-32b", "Qwen/Qwen3-32B"
SYSTEMS = {"h100_sxm": "h100-sxm", "b200_sxm": "b200"}
RATIO_LIMIT = 0.35
DATA = Path(__file__).parents[1] / "tests" / "roofline" / "data" / "aiconfigurator_0_12.json"
_LAYOUTS = (1, 2, 4)
_BATCHES = (1, 8, 32, 128)
_TOKENS = (512, 4096, 16384)
_GPUS = 8


def points(*, quick: bool) -> list[dict[str, Any]]:
    """What is asked for: decode steps over batch and context, lone prompts over length, at each layout."""
    layouts, batches, lengths = ((2,), (8,), (4096,)) if quick else (_LAYOUTS, _BATCHES, _TOKENS)
    return [
        {"phase": phase, "system": system, "tp": tp, "batch": batch, "tokens": tokens}
        for phase in ("decode", "prefill")
        for system in SYSTEMS
        for tp in layouts
        for batch in (batches if phase == "decode" else (1,))
        for tokens in lengths
    ]


def ask(python: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Runs the driver in aiconfigurator's environment. Raises CalledProcessError with its stderr on the terminal."""
    driver = Path(__file__).with_name("_aiconfigurator_driver.py")
    done = subprocess.run(
        (str(python), "-W", "ignore", str(driver)),
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr[-4000:])
        done.check_returncode()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def install(folder: Path) -> Path:
    """aiconfigurator's own Python, with the package where it is missing (some 700 MB, a minute or two)."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run((sys.executable, "-m", "venv", str(folder)), check=True)
    has_it = subprocess.run(
        (str(python), "-c", "import aiconfigurator"), capture_output=True, check=False
    ).returncode
    if has_it != 0:
        subprocess.run((str(python), "-m", "pip", "install", "-q", f"aiconfigurator=={VERSION}"), check=True)
    return python


def step_model(system: str, tp: int) -> RooflineStepModel:
    """Ours, at the floor."""
    gpu = gpu_named(SYSTEMS[system])
    fabric = fabric_of(gpu, link_named("ib-ndr"))
    return RooflineStepModel(model_named(MODEL), gpu, Layout(tp=tp), Formats(), fabric)


def floor_s(point: dict[str, Any]) -> float:
    """Our seconds for the same step."""
    model, tokens = step_model(point["system"], point["tp"]), point["tokens"]
    if point["phase"] == "decode":
        return model.step_s(decode_batch(point["batch"], tokens))
    return model.step_s(prompt_batch(tokens))


def floor_tokens_per_s(system: str) -> float:
    """Output tokens/s a GPU of our best layout for the reference workload."""
    layouts = [step_model(system, tp) for tp in (*_LAYOUTS, _GPUS)]
    work = REFERENCE_WORKLOAD
    return max(
        served(model, work).requests_per_s * work.output_tokens / model.layout.gpus for model in layouts
    )


def generation_ratio(rates: dict[str, float]) -> float:
    """B200 over H100."""
    return rates["b200_sxm"] / rates["h100_sxm"]


def faults(answer: dict[str, Any]) -> list[str]:
    """What does not hold; empty where all does."""
    found = []
    for point in answer["estimates"]:
        ours = floor_s(point)
        if ours > point["seconds"]:
            found.append(f"floor {ours:.6f} s above the estimate {point['seconds']:.6f} s: {_name(point)}")
    if answer["tokens_per_s_a_gpu"]:
        theirs = generation_ratio(answer["tokens_per_s_a_gpu"])
        ours = generation_ratio({system: floor_tokens_per_s(system) for system in SYSTEMS})
        if abs(ours / theirs - 1) > RATIO_LIMIT:
            found.append(f"B200 over H100 is {ours:.2f} for us and {theirs:.2f} for aiconfigurator")
    return found


def _name(point: dict[str, Any]) -> str:
    return (
        f"{point['phase']} {point['system']} TP{point['tp']} batch {point['batch']} tokens {point['tokens']}"
    )


def report(answer: dict[str, Any]) -> str:
    """A line a point: our floor, the estimate, and floor over estimate."""
    lines = [f"aiconfigurator {answer['version']} ({answer['backend']}), {MODEL} in BF16"]
    for point in answer["estimates"]:
        ours, theirs = floor_s(point), point["seconds"]
        lines.append(f"{_name(point):52} {ours * 1e3:9.3f} ms  {theirs * 1e3:9.3f} ms  {ours / theirs:5.0%}")
    rates = answer["tokens_per_s_a_gpu"]
    if rates:
        ours_by_system = {system: floor_tokens_per_s(system) for system in SYSTEMS}
        for system, rate in rates.items():
            lines.append(f"{system:52} {ours_by_system[system]:9.0f}     {rate:9.0f}     tokens/s a GPU")
        lines.append(
            f"{'B200 over H100':52} {generation_ratio(ours_by_system):9.2f}     {generation_ratio(rates):9.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache" / "ridgeline" / "aiconfigurator")
    parser.add_argument("--quick", action="store_true", help="a few points, no search for deployments")
    parser.add_argument("--json", action="store_true", help="print aiconfigurator's answer as one object")
    parser.add_argument("--write", action="store_true", help="keep the answer as the tests' data")
    options = parser.parse_args(arguments)
    workload = {
        "systems": list(SYSTEMS),
        "gpus": _GPUS,
        "prompt": int(REFERENCE_WORKLOAD.prompt_tokens),
        "output": int(REFERENCE_WORKLOAD.output_tokens),
        "ttft_s": REFERENCE_WORKLOAD.ttft_s,
        "tpot_s": REFERENCE_WORKLOAD.tpot_s,
    }
    asked = {
        "model": THEIR_MODEL,
        "points": points(quick=options.quick),
        "workload": None if options.quick else workload,
    }
    answer = ask(install(options.venv), asked)
    if options.write:
        kept = {"source": f"made by bench/{Path(__file__).name} --write", **asked, **answer}
        del kept["points"]
        DATA.write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(answer) if options.json else report(answer))
    wrong = faults(answer)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
