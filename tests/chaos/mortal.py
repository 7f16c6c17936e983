"""A command that does not outlive whoever started it: `python mortal.py COMMAND ARGUMENT…` becomes the command.

However a run of chaos ends, nothing is left running. That is asked of the kernel here, in a process of its own, and not
between fork and exec: a fork runs the handlers of libraries that have threads, and gRPC's ends the child by an abort.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def mortal(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command that runs a command so."""
    return (sys.executable, "-S", "-E", __file__, *command)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    os.execvp(sys.argv[1], sys.argv[1:])
