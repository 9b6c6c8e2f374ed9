"""`ridgeline plan [TOPIC]`: reads flags and a file, asks the topic, prints the answer."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from ridgeline_contracts.errors import SettingsError
from ridgeline_roofline.catalogue.gpus import THIS_MACHINE, Gpu, gpu_named
from ridgeline_roofline.plan.answer import plan_json
from ridgeline_roofline.plan.inputs import FLAGS, read_inputs
from ridgeline_roofline.plan.registry import all_topics, topic_named
from ridgeline_roofline.plan.topic import Topic
from ridgeline_roofline.step.timing import FLOOR, Efficiency

from ridgeline_cli.context import CliContext, context_of
from ridgeline_cli.plan.catalogue_page import catalogue_json, print_catalogue
from ridgeline_cli.plan.inputs_file import read_inputs_file
from ridgeline_cli.plan.rendering import print_plan, print_topics

CATALOGUE_TOPIC = "catalogue"
_HELP = {flag.name: flag.help for flag in FLAGS}
_HELP_EXTRA = "Input of one topic alone, as NAME=VALUE; repeat it. The printed plan names them."


def plan(
    ctx: typer.Context,
    topic: Annotated[
        str | None,
        typer.Argument(
            help="A topic, or `catalogue` for the GPUs, links, formats and models. None: list all."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help=_HELP["model"])] = None,
    gpu: Annotated[list[str] | None, typer.Option(help=_HELP["gpu"])] = None,
    gpus: Annotated[str | None, typer.Option(help=_HELP["gpus"])] = None,
    tp: Annotated[str | None, typer.Option(help=_HELP["tp"])] = None,
    pp: Annotated[str | None, typer.Option(help=_HELP["pp"])] = None,
    ep: Annotated[str | None, typer.Option(help=_HELP["ep"])] = None,
    dp: Annotated[str | None, typer.Option(help=_HELP["dp"])] = None,
    weights: Annotated[str | None, typer.Option(help=_HELP["weights"])] = None,
    kv: Annotated[str | None, typer.Option(help=_HELP["kv"])] = None,
    batch: Annotated[str | None, typer.Option(help=_HELP["batch"])] = None,
    context: Annotated[str | None, typer.Option(help=_HELP["context"])] = None,
    prompt: Annotated[str | None, typer.Option(help=_HELP["prompt"])] = None,
    output: Annotated[str | None, typer.Option(help=_HELP["output"])] = None,
    ttft: Annotated[str | None, typer.Option(help=_HELP["ttft"])] = None,
    tpot: Annotated[str | None, typer.Option(help=_HELP["tpot"])] = None,
    rate: Annotated[str | None, typer.Option(help=_HELP["rate"])] = None,
    link: Annotated[str | None, typer.Option(help=_HELP["link"])] = None,
    extra: Annotated[list[str] | None, typer.Option("--set", help=_HELP_EXTRA)] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="YAML with the same names as the flags; flags win.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object in SI base units, nothing else.")
    ] = False,
    plot: Annotated[
        bool | None,
        typer.Option("--plot/--no-plot", help="The curve, where there is one. Default: on a terminal."),
    ] = None,
) -> None:
    """Answer a question of capacity, speed or cost from the roofline, with the working shown.

    `ridgeline plan` alone lists the topics with the question that each answers. Numbers take units: 8k tokens,
    320GB, 400Gb/s, 30ms, 12/s.
    """
    if topic is None:
        print_topics(all_topics(), as_json=as_json)
        return
    if topic == CATALOGUE_TOPIC:
        _print_catalogue(as_json=as_json)
        return
    chosen = topic_named(topic)
    flags = {
        "model": model, "gpu": gpu, "gpus": gpus, "tp": tp, "pp": pp, "ep": ep, "dp": dp, "weights": weights,
        "kv": kv, "batch": batch, "context": context, "prompt": prompt, "output": output, "ttft": ttft,
        "tpot": tpot, "rate": rate, "link": link,
    }  # fmt: skip
    given: dict[str, str | Sequence[str]] = {} if file is None else dict(read_inputs_file(file))
    given |= _extras(chosen, extra or [])
    given |= {name: value for name, value in flags.items() if value}
    _answer(
        chosen, given, context_of(ctx), as_json=as_json, plot=sys.stdout.isatty() if plot is None else plot
    )


def _answer(
    topic: Topic, given: dict[str, str | Sequence[str]], context: CliContext, *, as_json: bool, plot: bool
) -> None:
    inputs = read_inputs(
        given,
        defaults=topic.defaults,
        extras=topic.extras,
        find_gpu=lambda gpu_id: find_gpu(gpu_id, context),
        efficiency=_efficiency(given, context),
    )
    found = topic.answer(inputs)
    shown = inputs.shown(topic.uses)
    if as_json:
        sys.stdout.write(json.dumps(plan_json(topic.name, shown, found), indent=2) + "\n")
    else:
        print_plan(topic, shown, found, plot=plot)


def find_gpu(gpu_id: str, context: CliContext) -> Gpu:
    """A GPU of the catalogue, or this machine as `ridgeline calibrate` measured it. Raises SettingsError."""
    if gpu_id != THIS_MACHINE:
        return gpu_named(gpu_id)
    from ridgeline_cli.calibrate.stored import stored_gpu

    return stored_gpu(context.home)


def _efficiency(given: Mapping[str, str | Sequence[str]], context: CliContext) -> Efficiency:
    """The floor, but for this machine what its calibration adds."""
    if THIS_MACHINE not in given.get("gpu", ()):
        return FLOOR
    from ridgeline_cli.calibrate.stored import stored_efficiency

    return stored_efficiency(context.home)


def _extras(topic: Topic, texts: list[str]) -> dict[str, str]:
    known = {extra.name for extra in topic.extras}
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            offered = " ".join(f"{extra.name}={extra.default}" for extra in topic.extras) or "none"
            raise SettingsError(f"--set {text!r} is no input of {topic.name}: it has {offered}", param="set")
        found[name] = value
    return found


def _print_catalogue(*, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(catalogue_json(), indent=2) + "\n")
    else:
        print_catalogue()
