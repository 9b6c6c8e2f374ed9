"""How a fetch tells a person what it is doing: a moving bar on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
from rich.progress import Progress as RichBars

_PLAIN_STEP_PERCENT = 25

Advance = Callable[[int], None]
"""Takes the bytes done since the stage began; they may pass its total, which can be an estimate."""


class Progress(Protocol):
    """One stage at a time: `with progress.stage("convert", total_bytes) as advance: ...`."""

    def stage(self, name: str, total_bytes: int) -> AbstractContextManager[Advance]: ...

    def note(self, text: str) -> None: ...


class PlainProgress:
    """One line when a stage begins and one a quarter: for logs, pipes and CI."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line

    @contextmanager
    def stage(self, name: str, total_bytes: int) -> Iterator[Advance]:
        said_percent = 0
        self._write_line(f"{name}: {megabytes(total_bytes)}")

        def advance(done_bytes: int) -> None:
            nonlocal said_percent
            percent = min(100, done_bytes * 100 // max(1, total_bytes))
            if percent >= said_percent + _PLAIN_STEP_PERCENT:
                said_percent = percent // _PLAIN_STEP_PERCENT * _PLAIN_STEP_PERCENT
                self._write_line(f"{name}: {said_percent}%")

        yield advance
        if said_percent < 100:
            self._write_line(f"{name}: 100%")

    def note(self, text: str) -> None:
        self._write_line(text)


class BarProgress:
    """A bar a stage. Draws only inside a stage, so that an error message lands on a clean line."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str, total_bytes: int) -> Iterator[Advance]:
        columns = (TextColumn("{task.description:<28}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with RichBars(*columns, console=self._console) as bars:
            task = bars.add_task(name, total=total_bytes)
            yield lambda done_bytes: bars.update(task, completed=done_bytes)
            bars.update(task, completed=total_bytes)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False)


def progress_for(console: Console) -> Progress:
    """Bars where `console` is a terminal, plain lines where it is not."""
    if console.is_terminal:
        return BarProgress(console)
    return PlainProgress(lambda line: console.print(line, highlight=False, soft_wrap=True))


def megabytes(size_bytes: int) -> str:
    """`269.1 MB`: decimal megabytes with one digit after the point."""
    return f"{size_bytes / 1e6:.1f} MB"
