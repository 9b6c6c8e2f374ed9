"""Starts the product as a user does (`ridgeline up`) and stops it again, leaving nothing behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """What `--ready-file` holds."""

    base_url: str
    api_key: str
    admin_url: str
    admin_key: str
    gateway_pid: int
    router_pid: int
    worker_pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Platform:
    supervisor: subprocess.Popen[bytes]
    ready_path: Path
    log_path: Path

    def ready(self) -> ReadyFile:
        """Reads the ready file anew: pids change when a child is restarted."""
        held = json.loads(self.ready_path.read_text())
        pids = held["pids"]
        return ReadyFile(
            base_url=held["base_url"],
            api_key=held["api_key"],
            admin_url=held["admin_url"],
            admin_key=held["admin_key"],
            gateway_pid=pids["gateway"],
            router_pid=pids["router"],
            worker_pids=tuple(pids["workers"]),
        )

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def tree(self) -> list[psutil.Process]:
        """The supervisor's descendants, all generations."""
        return psutil.Process(self.supervisor.pid).children(recursive=True)


def wait_until(holds: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Polls a condition of another process. Raises AssertionError that says what never came."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def wait_until_gone(processes: list[psutil.Process], *, timeout_s: float) -> None:
    wait_until(
        lambda: all(_has_ended(process) for process in processes),
        timeout_s=timeout_s,
        what=f"the end of pids {[process.pid for process in processes]}",
    )


@contextlib.contextmanager
def running_platform(folder: Path, *flags: str, ready_within_s: float = 240) -> Iterator[Platform]:
    """`ridgeline up FLAGS` until the end of the block. Its data, ready file and log lie in `folder`."""
    ready_path, log_path = folder / "ready.json", folder / "up.log"
    command = [sys.executable, "-m", "ridgeline_cli", "up", "--ready-file", str(ready_path)]
    command += ["--data-dir", str(folder / "data"), "--port", str(free_port()), *flags]
    with log_path.open("wb") as log:
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        supervisor = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    platform = Platform(supervisor, ready_path, log_path)
    try:
        wait_until(
            lambda: ready_path.exists() or supervisor.poll() is not None,
            timeout_s=ready_within_s,
            what="ready file",
        )
        assert supervisor.poll() is None, f"`ridgeline up` ended:\n{platform.log_tail()}"
        yield platform
    finally:
        _stop(platform)


def _stop(platform: Platform) -> None:
    supervisor = platform.supervisor
    if supervisor.poll() is not None:
        return
    children = platform.tree()
    supervisor.send_signal(signal.SIGINT)
    try:
        supervisor.wait(timeout=60)
        wait_until_gone(children, timeout_s=20)
    finally:
        supervisor.kill()
        supervisor.wait()
