"""A side of a comparison in a process of its own: it answers a JSON line with a JSON line and sleeps between.

Kept alive over all repeats, so that loading and compiling are paid once; the processor time that it takes
while others run is measured, because a side that spins would slow the others down.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


class DriverFailed(RuntimeError):
    """A driver ended or said something else than JSON; its last lines are in the message."""


@dataclass(frozen=True, slots=True)
class DriverSpec:
    name: str
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    log: Path


class Driver:
    """A running side. Use it as a context manager: the process ends with the block."""

    def __init__(self, spec: DriverSpec, *, environ: Mapping[str, str]) -> None:
        self.name = spec.name
        self._log = spec.log
        with spec.log.open("wb") as log:
            self._process = subprocess.Popen(
                spec.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environ, **dict(spec.environment)},
                text=True,
            )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ready(self) -> dict[str, Any]:
        """Waits for the driver's first line. Raises DriverFailed if it ends before."""
        return self._answer()

    def ask(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Sends one piece of work and waits for its answer. Raises DriverFailed if the driver ends."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(work) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure("is gone") from error
        return self._answer()

    def cpu_seconds(self) -> float:
        """Processor time so far, of the process and all that it started."""
        process = psutil.Process(self._process.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return float(sum(one.user + one.system for one in times))

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure(f"ended with exit code {self._process.wait()}")
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise self._failure(f"said {line[:200]!r}") from error
        return answer

    def _failure(self, what: str) -> DriverFailed:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        return DriverFailed(f"{self.name} {what}; the end of {self._log}:\n{tail}")


def first_cores(count: int) -> tuple[int, ...]:
    """The first `count` cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0))[:count])
