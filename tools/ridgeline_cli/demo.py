"""`ridgeline demo`: the whole platform, one real answer, the same again from the prefix cache, the figures."""

import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ridgeline_cli.context import CliContext, context_of
from ridgeline_cli.demo_platform import OwnPlatform, started_platform
from ridgeline_cli.demo_report import DemoFigures, figures_of, figures_table, problem_with
from ridgeline_cli.model.commands import open_fetcher, stderr_progress
from ridgeline_cli.openai_stream import Message, Server, open_client, stream_chat
from ridgeline_cli.up.preflight import UpOptions
from ridgeline_cli.up.ready_file import Ready

_NOT_SHOWN = 1
_REQUESTS = ("first", "again")
# Long enough to fill several blocks of the cache.
_SYSTEM = (
    "You are a friendly teacher in a cooking school for people who have never cooked before. Your students have "
    "one pan, one pot, a sharp knife and a small stove. They shop once a week, have little time in the evening "
    "and want to eat well without spending much. Use plain words, name things that every shop has, and explain "
    "why a step matters when it is not obvious. Never suggest a tool that the students do not have. Be kind: a "
    "burnt dinner is part of learning."
)
_QUESTION = "Write three short tips for learning to cook."


def demo(
    ctx: typer.Context,
    model: Annotated[str, typer.Option(help="As for `ridgeline up`.")] = UpOptions().model,
    dtype: Annotated[str, typer.Option(help="auto, bf16 or fp32.")] = UpOptions().dtype,
    weights: Annotated[str, typer.Option(help="auto, int8 or int4.")] = UpOptions().weights,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Of each answer.")] = 80,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object and nothing else on stdout.")
    ] = False,
) -> None:
    """Start the platform, ask a real model twice, show the prefix cache at work, stop everything.

    Exit code 0 when the repeated prompt was found in the cache, 1 when it was not.
    """
    context = context_of(ctx)
    console = Console(stderr=as_json)
    folder = open_fetcher(context, stderr_progress()).fetch(model).folder
    flags = ["--model", model, "--dtype", dtype, "--weights", weights, "--workers", str(workers)]
    with (
        tempfile.TemporaryDirectory(prefix="ridgeline-demo-") as place,
        started_platform(
            OwnPlatform(Path(place), flags, context.environ), while_waiting=_waiting(console)
        ) as ready,
    ):
        figures = _ask_twice(context, ready, folder.name, max_tokens=max_tokens, console=console)
        console.print("\nstopping ...", style="dim")
    problem = problem_with(figures)
    if as_json:
        held = {"model": folder.name, "requests": [asdict(one) for one in figures], "problem": problem}
        typer.echo(json.dumps(held))
    else:
        console.print(figures_table(figures, _REQUESTS))
    if problem is not None:
        typer.echo(f"error: {problem}", err=True)
        raise typer.Exit(_NOT_SHOWN)


def _ask_twice(
    context: CliContext, ready: Ready, model: str, *, max_tokens: int, console: Console
) -> list[DemoFigures]:
    console.print(f"{model} is served at {ready.base_url}", highlight=False)
    console.print(f"> {_QUESTION}", style="bold", highlight=False)
    messages: list[Message] = [
        {"role": "system", "content": _SYSTEM},
        {"role": "user", "content": _QUESTION},
    ]
    figures = []
    server = Server(ready.base_url, ready.api_key)
    with open_client(server) as client:
        for name in _REQUESTS:
            console.print(f"\n[{name}]", style="dim", markup=False)
            answer = stream_chat(
                client,
                server,
                model=model,
                messages=messages,
                options={"temperature": 0, "max_tokens": max_tokens},
                clock=context.clock,
                on_text=_writer(console),
            )
            console.print()
            figures.append(figures_of(answer))
    return figures


def _writer(console: Console) -> Callable[[str], None]:
    def write(text: str) -> None:
        console.file.write(text)
        console.file.flush()

    return write


def _waiting(console: Console) -> AbstractContextManager[object]:
    """Says that something is going on: with a spinner on a terminal, in one line elsewhere."""
    words = "starting router, worker and gateway ..."
    if console.is_terminal:
        return console.status(words)
    console.print(words)
    return nullcontext()
