"""What first runs in a child of `up`: ties its life to its parent's, then becomes the program.

    python -I -S death_shim.py PARENT_PID PROGRAM ARGUMENT...

A script and not a module: started without site packages it costs some ten milliseconds. The request survives
the exec. A parent that died before it was made is noticed by the check after it. The kernel acts on the end
of the *thread* that started the child, so that a supervisor starts its children from its main thread.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PARENT_GONE = 3


def main(arguments: list[str]) -> None:
    parent_pid, program = int(arguments[0]), arguments[1]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        sys.exit(_PARENT_GONE)
    os.execv(program, arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
