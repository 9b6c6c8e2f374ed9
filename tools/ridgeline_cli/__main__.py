"""The `ridgeline` command: reads the environment, registers the commands, turns errors into exit codes."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import InvariantError, RidgelineError
from ridgeline_contracts.exits import USAGE

from ridgeline_cli.context import CliContext


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command lives: its module is loaded only when it is run, or when all are listed."""

    name: str
    module: str
    attribute: str
    """A function, or a group of commands."""


# One line a command.
COMMANDS = (
    Command("up", "ridgeline_cli.up.command", "up"),
    Command("chat", "ridgeline_cli.chat", "chat"),
    Command("demo", "ridgeline_cli.demo", "demo"),
    Command("plan", "ridgeline_cli.plan.command", "plan"),
    Command("calibrate", "ridgeline_cli.calibrate.command", "calibrate"),
    Command("tenant", "ridgeline_cli.tenant.commands", "app"),
    Command("model", "ridgeline_cli.model.commands", "app"),
    Command("doctor", "ridgeline_doctor.commands", "app"),
)


def build_app(wanted: str | None = None) -> typer.Typer:
    """The command line with the one command that is wanted, or with all of them where no such one is known."""
    app = typer.Typer(
        name="ridgeline",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Serve large language models to many tenants, from a laptop's CPU to a GPU fleet.",
    )
    # A callback keeps the command's name on the line, even where it is the only one registered.
    app.callback()(_no_options)
    chosen = [command for command in COMMANDS if command.name == wanted]
    for command in chosen or COMMANDS:
        found = getattr(import_module(command.module), command.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command.name)
        else:
            app.command(command.name)(found)
    return app


def _no_options() -> None:
    """Serve large language models to many tenants, from a laptop's CPU to a GPU fleet."""


def read_context(environ: Mapping[str, str]) -> CliContext:
    """The surroundings that an environment describes."""
    stated = environ.get("RIDGELINE_HOME")
    home = Path(stated).expanduser() if stated else Path.home() / ".cache" / "ridgeline"
    return CliContext(home=home.absolute(), environ=dict(environ), clock=SystemClock())


def main() -> None:
    """Runs one command. What a person can mend: one line on stderr and exit code 2. A bug: a traceback."""
    app = build_app(sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        app(obj=read_context(os.environ))
    except InvariantError:
        raise
    except RidgelineError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
