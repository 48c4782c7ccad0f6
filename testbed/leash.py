"""`leash.py PARENT PROGRAM ARGS…`: become PROGRAM, and be killed by the kernel when PARENT dies, however it dies.

A program of its own because `preexec_fn` is unsafe beside threads. Only the standard library: it runs before every process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have died before the line above.
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
