"""What `up` shows: on a terminal a moving list of the children while they start, else one line a thing."""

import signal
from contextlib import suppress
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from ridgeline_cli.up.plan import ChildSpec, ProcessPlan, Role
from ridgeline_cli.up.runner import Death

_COLOURS = {
    Role.ROUTER: ("magenta",),
    Role.WORKER: ("cyan", "green", "blue", "yellow"),
    Role.GATEWAY: ("bright_red",),
}


class StartList(Protocol):
    """The children and what each of them does, until all are ready."""

    def set(self, name: str, words: str) -> None: ...

    def close(self) -> None: ...


class NoStartList:
    """Where there is no terminal the lines of `UpDisplay` say it all."""

    def set(self, name: str, words: str) -> None:
        pass

    def close(self) -> None:
        pass


class LiveStartList:
    """A spinner, a state and the time for each child. Close it before anything else may own the screen."""

    def __init__(self, console: Console, names: tuple[str, ...]) -> None:
        columns = (SpinnerColumn(finished_text="*"), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {name: self._progress.add_task(name, total=1) for name in names}
        self._progress.start()

    def set(self, name: str, words: str) -> None:
        done = 1 if words == "ready" else 0
        self._progress.update(self._tasks[name], description=f"{name}: {words}", completed=done)

    def close(self) -> None:
        self._progress.stop()


class UpDisplay:
    """The watcher that a person sees. Everything goes to one console (stderr): stdout is for the summary."""

    def __init__(self, console: Console, plan: ProcessPlan) -> None:
        names = tuple(child.name for child in plan.children)
        self._console = console
        self._width = max(len(name) for name in names)
        self._colours = {child.name: _colour(plan, child) for child in plan.children}
        self._start_list: StartList = LiveStartList(console, names) if console.is_terminal else NoStartList()

    def close_start_list(self) -> None:
        """All is ready, or nothing will be. Harmless to repeat."""
        self._start_list.close()
        self._start_list = NoStartList()

    def on_line(self, spec: ChildSpec, line: str) -> None:
        self._print(spec, Text.from_ansi(line))

    def on_starting(self, spec: ChildSpec) -> None:
        self._start_list.set(spec.name, "starting")
        self._print(spec, Text("starting", style="dim"))

    def on_ready(self, spec: ChildSpec, took_ms: float) -> None:
        self._start_list.set(spec.name, "ready")
        self._print(spec, Text(f"ready after {took_ms / 1000:.1f} s", style="bold"))

    def on_death(self, spec: ChildSpec, death: Death) -> None:
        self._start_list.set(spec.name, "died")
        restart = (
            "" if death.restart_in_ms is None else f"; starting again in {death.restart_in_ms / 1000:.1f} s"
        )
        self._print(spec, Text(f"died: {exit_words(death.exit_code)}{restart}", style="bold red"))
        if death.last_lines:
            self._print(spec, Text("its last lines were:", style="red"))
        for line in death.last_lines:
            self._print(spec, Text.assemble(("  > ", "red"), Text.from_ansi(line)))

    def on_stopping(self, spec: ChildSpec) -> None:
        self._print(spec, Text("draining", style="dim"))

    def on_stopped(self, spec: ChildSpec) -> None:
        self._print(spec, Text("stopped", style="dim"))

    def on_fault(self, error: BaseException) -> None:
        """Raised by the supervisor in the end; here it would be said twice."""

    def _print(self, spec: ChildSpec, text: Text) -> None:
        prefix = Text(f"{spec.name:<{self._width}} | ", style=self._colours[spec.name])
        self._console.print(Text.assemble(prefix, text), soft_wrap=True, highlight=False)


def exit_words(exit_code: int) -> str:
    """`exit code 3`, or `killed by SIGKILL` for a negative one."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-exit_code).name}"
    return f"killed by signal {-exit_code}"


def _colour(plan: ProcessPlan, child: ChildSpec) -> str:
    colours = _COLOURS[child.role]
    return colours[plan.of(child.role).index(child) % len(colours)]
