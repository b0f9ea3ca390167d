"""The launcher's terminal, which a rank that calls breakpoint() uses.

Beside the terminal the ranks share a piece of memory: its lock is held by the rank that uses the terminal, and it
begins with the time at which a rank last did, in nanoseconds of the monotonic clock. All ranks begin their timeouts
anew then.
"""

from __future__ import annotations

import os
import sys

from rankwise.system.settings import DEBUGGER_MEMFD


class Terminal:
    """The terminal from which this process reads, if it does from one.

    fds: the descriptors that the ranks inherit. variables: their environment's.
    """

    def __init__(self) -> None:
        self.fds: tuple[int, ...] = ()
        self.variables = {"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT") or "rankwise.launch.debugger.stop"}

    def open(self) -> None:
        try:
            stdin = sys.stdin.fileno()
            if not os.isatty(stdin) or os.tcgetpgrp(stdin) != os.getpgrp():  # in the background the shell reads from it
                return
            terminal = os.open(os.ttyname(stdin), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except (AttributeError, OSError, ValueError):
            return  # no standard input, a notebook's, or a terminal that this process may not open
        memory = os.memfd_create(DEBUGGER_MEMFD)
        os.truncate(memory, 8)
        self.fds = terminal, memory
        self.variables.update(RANKWISE_TERMINAL_FD=str(terminal), RANKWISE_DEBUGGER_FD=str(memory))

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds = ()
