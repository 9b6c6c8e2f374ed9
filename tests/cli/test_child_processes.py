"""Real children of this machine: their lines, their groups, and that they die with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from ridgeline_cli.up import death_shim
from ridgeline_cli.up.line_splitter import LineSplitter
from ridgeline_cli.up.plan import ChildSpec, Role
from ridgeline_cli.up.processes import local_spawner

ENVIRON = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "FROM_PARENT": "kept"}


def _spec(program: str, **variables: str) -> ChildSpec:
    command = (sys.executable, "-c", program)
    return ChildSpec("child", Role.WORKER, command, tuple(variables.items()), "", start_timeout_ms=1)


class Watched:
    """Collects a child's lines and its exit code."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line_came = asyncio.Event()
        self.exit_code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_line(self, line: str) -> None:
        self.lines.append(line)
        self.line_came.set()

    async def first_line(self) -> str:
        await asyncio.wait_for(self.line_came.wait(), timeout=30)
        return self.lines[0]


def _is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


async def test_a_child_gets_its_variables_and_its_lines_arrive_before_its_exit_code() -> None:
    watched = Watched()
    program = (
        "import os, sys; print(os.environ['FROM_PARENT'], os.environ['OWN']); sys.stdout.flush();"
        "print('no end', end='', file=sys.stderr); sys.exit(3)"
    )
    local_spawner(ENVIRON)(
        _spec(program, OWN="set", PYTHONUNBUFFERED="1"),
        on_line=watched.on_line,
        on_exit=watched.exit_code.set_result,
    )
    assert await asyncio.wait_for(watched.exit_code, timeout=30) == 3
    assert sorted(watched.lines) == ["kept set", "no end"]


async def test_terminate_reaches_the_program_behind_the_shim() -> None:
    watched = Watched()
    child = local_spawner(ENVIRON)(
        _spec("import signal; print('up', flush=True); signal.pause()"),
        on_line=watched.on_line,
        on_exit=watched.exit_code.set_result,
    )
    assert await watched.first_line() == "up"
    child.terminate()
    assert await asyncio.wait_for(watched.exit_code, timeout=30) == -signal.SIGTERM
    child.terminate()
    child.kill()


@pytest.mark.parametrize(
    "end", [pytest.param("kill", id="killed-by-us"), pytest.param("crash", id="killed-by-another")]
)
async def test_what_a_killed_child_had_started_dies_with_it(end: str) -> None:
    watched = Watched()
    program = (
        "import subprocess, sys, signal;"
        "inner = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print(inner.pid, flush=True); signal.pause()"
    )
    child = local_spawner(ENVIRON)(
        _spec(program), on_line=watched.on_line, on_exit=watched.exit_code.set_result
    )
    inner_pid = int(await watched.first_line())
    if end == "kill":
        child.kill()
    else:
        os.kill(child.pid, signal.SIGKILL)
    assert await asyncio.wait_for(watched.exit_code, timeout=30) == -signal.SIGKILL
    await asyncio.to_thread(_wait_until, lambda: _is_gone(inner_pid))


def test_a_child_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from ridgeline_cli.up.plan import ChildSpec, Role\n"
        "from ridgeline_cli.up.processes import local_spawner\n"
        "async def main():\n"
        "    command = (sys.executable, '-c', 'import signal; print(1, flush=True); signal.pause()')\n"
        "    spec = ChildSpec('c', Role.WORKER, command, (), '', start_timeout_ms=1)\n"
        "    up = asyncio.Event()\n"
        "    child = local_spawner(os.environ)(spec, on_line=lambda _: up.set(), on_exit=lambda _: None)\n"
        "    await up.wait()\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child_pid = int(parent.stdout.readline())
        assert not _is_gone(child_pid)
        parent.kill()
    _wait_until(lambda: _is_gone(child_pid))


def test_a_child_whose_parent_is_gone_already_never_becomes_the_program(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    shim = death_shim.__file__
    assert shim is not None
    wrong_parent = "1" if os.getpid() != 1 else "2"
    command = [sys.executable, "-I", "-S", shim, wrong_parent, "/bin/sh", "-c", f"touch {mark}"]
    assert subprocess.run(command, check=False).returncode == 3
    assert not mark.exists()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        pytest.param([b"one\ntw", b"o\n"], ["one", "two"], id="cut-inside-a-line"),
        pytest.param([b"a\r\n\nb"], ["a", "", "b"], id="empty-and-unfinished"),
        pytest.param(
            ["\N{SNOWMAN}".encode()[:1], "\N{SNOWMAN}".encode()[1:]], ["\N{SNOWMAN}"], id="cut-letter"
        ),
        pytest.param([b"\xff\n"], ["\N{REPLACEMENT CHARACTER}"], id="not-text"),
        pytest.param([b"x" * 9, b"y\n"], ["x" * 9, "y"], id="longer-than-the-limit"),
    ],
)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(pieces: list[bytes], lines: list[str]) -> None:
    splitter = LineSplitter(limit_bytes=8)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    assert found + splitter.finish() == lines
