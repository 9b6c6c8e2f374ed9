"""Ties a process's life to its parent's, so that a parent that is killed leaves nothing behind."""

import ctypes
import os
import signal

from ridgeline_contracts.errors import InvariantError

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> bool:
    """The kernel kills this process when the thread that started it ends, by SIGKILL too.

    Returns False when the parent had died already: then no signal will come, and the caller must end.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise InvariantError(f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    return os.getppid() == parent_pid
