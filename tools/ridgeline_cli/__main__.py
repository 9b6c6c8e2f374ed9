"""The `ridgeline` command: reads the environment, registers the commands, turns errors into exit codes."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from ridgeline_contracts.clock import SystemClock
from ridgeline_contracts.errors import InvariantError, RidgelineError
from ridgeline_contracts.exits import USAGE
from ridgeline_doctor.commands import app as doctor_app

from ridgeline_cli.chat import chat
from ridgeline_cli.context import CliContext
from ridgeline_cli.demo import demo
from ridgeline_cli.model.commands import app as model_app
from ridgeline_cli.plan.command import plan
from ridgeline_cli.up.command import up

app = typer.Typer(
    name="ridgeline",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve large language models to many tenants, from a laptop's CPU to a GPU fleet.",
)
# One line a command: `app.add_typer(group, name=...)`, or `app.command("name")(function)` for a single one.
app.add_typer(model_app, name="model")
app.add_typer(doctor_app, name="doctor")
app.command("up")(up)
app.command("chat")(chat)
app.command("demo")(demo)
app.command("plan")(plan)


def read_context(environ: Mapping[str, str]) -> CliContext:
    """The surroundings that an environment describes."""
    stated = environ.get("RIDGELINE_HOME")
    home = Path(stated).expanduser() if stated else Path.home() / ".cache" / "ridgeline"
    return CliContext(home=home.absolute(), environ=dict(environ), clock=SystemClock())


def main() -> None:
    """Runs one command. What a person can mend: one line on stderr and exit code 2. A bug: a traceback."""
    try:
        app(obj=read_context(os.environ))
    except InvariantError:
        raise
    except RidgelineError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
