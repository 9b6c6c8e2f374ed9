"""`ridgeline calibrate`: measures, fits, stores, and prints predicted against measured."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from ridgeline_contracts.errors import SettingsError
from ridgeline_contracts.model_folder import load_model_folder

from ridgeline_cli.context import context_of
from ridgeline_cli.model.cache import ModelCache

if TYPE_CHECKING:
    from ridgeline_engine.executors.sizes import DtypeSetting

_MODEL = "smollm2-135m-instruct"
_KV_SHARE = 0.4
"""Of the available memory, unless --kv-bytes says otherwise."""
_MOST_KV_BYTES = 8 * 1024**3
_INTERRUPTED = 130


def calibrate(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="A model of `ridgeline model list`, or a folder.")] = _MODEL,
    dtype: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="Default: the usable cores.")] = None,
    kv: Annotated[str | None, typer.Option("--kv-bytes", help="KV memory, such as 4GiB.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Of each cell; the lowest counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid, in a minute or two.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Where to store it instead of the cache folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object on stdout, nothing else.")] = False,
) -> None:
    """Measure this machine and the engine's steps, fit the step model, and say how well it predicts.

    Takes some minutes and wants the machine for itself. Exit code 1 when the model misses its error limits.
    """
    from ridgeline_doctor.machine_probe import probe_machine
    from ridgeline_engine.executors.sizes import DtypeSetting
    from ridgeline_roofline.calibration.judge import judged_errors
    from ridgeline_roofline.units import Unit, parse_quantity

    from ridgeline_cli.calibrate.rendering import calibration_json, print_calibration
    from ridgeline_cli.calibrate.session import Plan, calibrate_machine
    from ridgeline_cli.calibrate.stored import calibration_file, save

    if dtype not in get_args(DtypeSetting):
        raise SettingsError(f"--dtype {dtype!r} is unknown: give auto, bf16 or fp32", param="dtype")
    context, machine = context_of(ctx), probe_machine()
    folder = load_model_folder(Path(model)) if Path(model).is_dir() else ModelCache(context.home).load(model)
    plan = Plan(
        folder=folder,
        dtype=_dtype(dtype),
        threads=threads or machine.usable_cores,
        kv_bytes=int(parse_quantity(kv, Unit.BYTES, name="kv-bytes"))
        if kv
        else min(_MOST_KV_BYTES, int(machine.memory_available_bytes * _KV_SHARE)),
        kernel_cache=context.home / "kernels",
        repeats=repeats,
        quick=quick,
    )
    console = Console(stderr=as_json)
    try:
        with _progress() as bars:
            task = bars.add_task("measuring", total=plan.steps)
            from ridgeline_kernels.rates import set_threads

            found = calibrate_machine(
                plan,
                machine,
                context.clock,
                on_step=lambda: bars.advance(task),
                torch_version=set_threads(plan.threads),
            )
    except KeyboardInterrupt:
        console.print("interrupted: nothing is stored")
        raise typer.Exit(_INTERRUPTED) from None
    path = output or calibration_file(context.home, found.conditions)
    save(found, path)
    if as_json:
        sys.stdout.write(json.dumps(calibration_json(found, path=str(path)), indent=2) + "\n")
    else:
        print_calibration(found, console, path=str(path))
    if not judged_errors(found.results).holds:
        raise typer.Exit(1)


def _dtype(text: str) -> "DtypeSetting":
    return "auto" if text == "auto" else "bf16" if text == "bf16" else "fp32"


def _progress() -> Progress:
    """On stderr, gone when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
