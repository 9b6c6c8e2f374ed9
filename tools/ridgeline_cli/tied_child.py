"""Commands of children that end when we do, SIGKILL included."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_SHIM = Path(__file__).parent / "up" / "death_shim.py"


def tied_to_us(command: Sequence[str]) -> tuple[str, ...]:
    """The command behind the death shim. Start it from the main thread: the tie is to the thread that starts it.

    And not by `preexec_fn`: that forks, and a fork of a process with gRPC's threads can end before it runs anything.
    """
    return (sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), *command)
