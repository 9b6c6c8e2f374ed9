"""A platform of one's own for the time of a block: `ridgeline up` as a child, its output in a file."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ridgeline_contracts.errors import PeerError

from ridgeline_cli.tied_child import tied_to_us
from ridgeline_cli.up.ports import free_ports
from ridgeline_cli.up.ready_file import Ready, read_ready

_POLL_S = 0.1
_STOP_TIMEOUT_S = 90.0
_TAIL_LINES = 25


@dataclass(frozen=True, slots=True)
class OwnPlatform:
    """Where the child keeps its things, and how it is started."""

    folder: Path
    flags: Sequence[str]
    environ: Mapping[str, str]

    @property
    def log(self) -> Path:
        return self.folder / "up.log"

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready.json"

    def command(self) -> list[str]:
        """Through the death shim, so that a killed parent leaves neither `up` nor its children."""
        (port,) = free_ports(1)
        up = [sys.executable, "-P", "-m", "ridgeline_cli", "up", "--port", str(port)]
        up += ["--ready-file", str(self.ready_file), "--data-dir", str(self.folder / "data"), *self.flags]
        return list(tied_to_us(up))

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])


@contextmanager
def started_platform(
    platform: OwnPlatform, *, while_waiting: AbstractContextManager[object]
) -> Iterator[Ready]:
    """Yields where the platform serves; stops it at the end of the block, whatever happens in it.

    `while_waiting` is entered until it is ready. Raises PeerError, with its log's end, if it ends before.
    """
    with platform.log.open("wb") as log:
        process = subprocess.Popen(
            platform.command(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(platform.environ),
            # Ctrl-C is for this process, which then stops the platform in order.
            start_new_session=True,
        )
    try:
        with while_waiting:
            ready = _wait_until_ready(platform, process)
        yield ready
    finally:
        _stop(process)


def _wait_until_ready(platform: OwnPlatform, process: "subprocess.Popen[bytes]") -> Ready:
    while not platform.ready_file.exists():
        try:
            exit_code = process.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise PeerError(f"`ridgeline up` ended with exit code {exit_code}:\n{platform.log_tail()}")
    return read_ready(platform.ready_file)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
