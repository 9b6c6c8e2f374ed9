"""What every command is handed: read from the machine once, in `__main__`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from ridgeline_contracts.clock import Clock


@dataclass(frozen=True, slots=True)
class CliContext:
    """The surroundings of one run of `ridgeline`."""

    home: Path
    """The cache and state folder: $RIDGELINE_HOME, else ~/.cache/ridgeline. May not exist yet."""
    environ: Mapping[str, str]
    """For child processes, and for commands with settings of their own."""
    clock: Clock


def context_of(ctx: typer.Context) -> CliContext:
    """The context that `__main__` (or a test) passed as `obj`."""
    context = ctx.find_object(CliContext)
    assert context is not None, "run the app with obj=CliContext(...)"
    return context
