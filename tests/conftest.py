"""What every suite shares: settings of the libraries under test, and real system programs on loopback.

A test that needs a program which is not here is skipped, and the closing summary says so loudly. With
RIDGELINE_REQUIRE_PROGRAMS=1 (CI sets it) it fails instead.
"""

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Read by the libraries when they load, so before any test module imports them. Spinning OpenMP threads starve
# a test's other processes; no test reaches a model hub; kernels are interpreted where there is no GPU.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

MISSING = "system program missing: "
DEBIAN_PACKAGES = {"cc": "gcc", "promtool": "prometheus"}
ELSEWHERE = {
    "kube-apiserver": "kube-apiserver: see docs/operator.md, set KUBEBUILDER_ASSETS",
    "helm": "helm: see docs/operator.md, put it on PATH",
}
"""Programs that Debian does not have, and where they come from."""


@pytest.fixture(scope="session")
def system_program() -> Callable[[str], str]:
    """Returns a function that gives a program's path, or skips the test when it is not installed."""

    def find(program: str) -> str:
        path = shutil.which(program)
        if path is None:
            if os.environ.get("RIDGELINE_REQUIRE_PROGRAMS") == "1":
                pytest.fail(f"{MISSING}{program}", pytrace=False)
            pytest.skip(f"{MISSING}{program}")
        return path

    return find


class RedisServer:
    """A real redis-server on a free loopback port; it keeps nothing on disk, so a stop loses all it held."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._drain: threading.Thread | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns once it accepts connections. A restart keeps the port."""
        assert self._process is None, "this redis-server runs already"
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._folder)]
        options += ["--save", "", "--appendonly", "no", "--logfile", ""]
        process = subprocess.Popen([self._program, *options], stdout=subprocess.PIPE, text=True)
        self._process = process
        assert process.stdout is not None
        log: list[str] = []
        for line in process.stdout:
            log.append(line)
            if "Ready to accept connections" in line:
                # A full pipe would stop the server.
                self._drain = threading.Thread(target=process.stdout.read, daemon=True)
                self._drain.start()
                return
        self.stop()
        raise RuntimeError(f"redis-server ended before it was ready:\n{''.join(log[-15:])}")

    def stop(self) -> None:
        """Ends it at once, as a crash would; does nothing when it is not running."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        if self._drain is not None:
            self._drain.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = self._drain = None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def shared_redis(
    system_program: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    server = RedisServer(system_program("redis-server"), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    """URL of a running, empty Redis."""
    with socket.create_connection(("127.0.0.1", shared_redis.port), timeout=10) as connection:
        connection.sendall(b"FLUSHALL\r\n")
        assert connection.recv(64) == b"+OK\r\n"
    return shared_redis.url


@pytest.fixture
def redis_server(system_program: Callable[[str], str], tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own, running, to be stopped and started again at will."""
    server = RedisServer(system_program("redis-server"), tmp_path)
    server.start()
    yield server
    server.stop()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lost = [
        (report.nodeid, reason.split(MISSING, 1)[1])
        for report in terminalreporter.stats.get("skipped", [])
        if MISSING in (reason := report.longrepr[2] if isinstance(report.longrepr, tuple) else "")
    ]
    if not lost:
        return
    terminalreporter.section("NOT TESTED: system programs are missing", sep="!", red=True, bold=True)
    for nodeid, program in lost:
        terminalreporter.line(f"NOT TESTED {nodeid}: no {program} here", red=True)
    programs = sorted({program for _, program in lost})
    packages = sorted({DEBIAN_PACKAGES.get(each, each) for each in programs if each not in ELSEWHERE})
    advice = "; ".join(
        [f"Debian and Ubuntu: apt-get install {' '.join(packages)}"] * bool(packages)
        + [ELSEWHERE[each] for each in programs if each in ELSEWHERE]
    )
    summary = f"{len(lost)} tests not run for want of {', '.join(programs)}. {advice}"
    terminalreporter.line(summary, red=True, bold=True)
