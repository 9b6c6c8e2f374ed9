"""One running child: started through the death shim, in a process group of its own, read as lines."""

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Protocol

from ridgeline_cli.tied_child import tied_to_us
from ridgeline_cli.up.line_splitter import LineSplitter
from ridgeline_cli.up.plan import ChildSpec

_READ_BYTES = 65536
_LAST_OUTPUT_WAIT_S = 0.5
"""How long the reader of a dead child may still take: a grandchild can keep the pipe open for longer."""


class Child(Protocol):
    """A started child, as the supervisor sees it."""

    @property
    def pid(self) -> int: ...

    def terminate(self) -> None:
        """Asks it to drain and end. Harmless when it is gone."""
        ...

    def kill(self) -> None:
        """Ends it and everything that it has started. Harmless when it is gone."""
        ...


OnLine = Callable[[str], None]
OnExit = Callable[[int], None]
"""Called once with the exit code, negative for a signal, after the last lines. Both run on the event loop."""


class Spawner(Protocol):
    def __call__(self, spec: ChildSpec, *, on_line: OnLine, on_exit: OnExit) -> Child: ...


class LocalProcess:
    """A child process of this machine. Make it on the event loop, in the main thread (see `death_shim`)."""

    def __init__(
        self, spec: ChildSpec, *, environ: Mapping[str, str], on_line: OnLine, on_exit: OnExit
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_line = on_line
        self._on_exit = on_exit
        self._process = subprocess.Popen(
            tied_to_us(spec.command),
            env={**environ, **dict(spec.environment)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal reaches the supervisor alone, which then stops all in order.
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"{spec.name}-output", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name=f"{spec.name}-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> None:
        # Popen checks that the pid has not been reaped and given to somebody else.
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        # Until the leader is reaped its group cannot be another's.
        if self._process.returncode is None:
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self._process.stdout is not None
        splitter = LineSplitter()
        with self._process.stdout as pipe:
            while data := os.read(pipe.fileno(), _READ_BYTES):
                self._hand_over(splitter.feed(data))
        self._hand_over(splitter.finish())

    def _hand_over(self, lines: list[str]) -> None:
        for line in lines:
            self._call(self._on_line, line)

    def _wait(self) -> None:
        # Not reaped yet, so that the group is still this child's: what a child that crashed has started dies
        # too.
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_status != 0:
            self._kill_group()
        exit_code = self._process.wait()
        self._reader.join(_LAST_OUTPUT_WAIT_S)
        self._call(self._on_exit, exit_code)

    def _call(self, function: Callable[..., None], argument: object) -> None:
        # A supervisor that is gone has no loop to tell.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, argument)


def local_spawner(environ: Mapping[str, str]) -> Spawner:
    """Starts children with `environ` under each child's own variables."""

    def spawn(spec: ChildSpec, *, on_line: OnLine, on_exit: OnExit) -> Child:
        return LocalProcess(spec, environ=environ, on_line=on_line, on_exit=on_exit)

    return spawn
