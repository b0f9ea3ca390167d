"""`breakpoint()` on a rank: pdb on the launcher's terminal, which one rank at a time has.

The launcher names `stop` in PYTHONBREAKPOINT. A rank has the terminal while its prompt is shown, and gives it back when
it goes on, so that another rank that has reached a breakpoint gets its prompt even if the first one now waits for it.
"""

from __future__ import annotations

import fcntl
import os
import pdb
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from rankwise.launch.rank_process import leave_terminal
from rankwise.system.settings import debugger_memory

BEAT = 0.5  # seconds between two updates of the time at which a rank was last in a debugger

_one_thread = threading.Lock()  # has the terminal; the lock of the memory excludes other processes only


def stop(*, header: str | None = None) -> None:
    """Stop in the caller: what `breakpoint()` does on a rank.

    Without a terminal, a rank that has standard input reads commands from there, as Python's own breakpoint() does.

    Raises:
        RuntimeError: there is neither.
    """
    memory = debugger_memory()
    if memory is not None:
        debugger: pdb.Pdb = _debugger(*memory)
    elif sys.stdin is None or os.path.samestat(os.fstat(0), os.stat(os.devnull)):
        raise RuntimeError(
            f"breakpoint() on rank {os.environ.get('RANKWISE_RANK')}: expected a terminal, on which the launcher's "
            "standard input is; start the program from a terminal, give this rank a standard input (rankwise run "
            "--stdin RANK), or set PYTHONBREAKPOINT=0, which ignores breakpoints"
        )
    else:
        debugger = pdb.Pdb()
    if header is not None:
        debugger.message(header)
    debugger.set_trace(sys._getframe(1))


class _RankDebugger(pdb.Pdb):
    def __init__(self, terminal: int, memory: int, rank: int) -> None:
        leave_terminal()  # else the kernel would stop this process, which is in the background, when it reads
        # Ctrl-C reaches the launcher, and ends the job.
        super().__init__(stdin=os.fdopen(terminal, closefd=False), stdout=os.fdopen(terminal, "w"), nosigint=True)
        self.prompt = f"(Pdb, rank {rank}) "
        self._memory = memory

    def interaction(self, *args: Any) -> None:
        with _one_thread, _last_user(self._memory):
            super().interaction(*args)


_debugger = lru_cache(1)(_RankDebugger)  # one alone, so that no line is lost that was typed ahead


@contextmanager
def _last_user(memory: int) -> Iterator[None]:
    """A context in which this process has the terminal, and no rank's timeout runs. Its death ends both too."""
    fcntl.lockf(memory, fcntl.LOCK_EX)
    over = threading.Event()

    def note(ahead: float) -> None:
        os.pwrite(memory, struct.pack("q", time.monotonic_ns() + int(1e9 * ahead)), 0)

    def beat() -> None:
        while not over.wait(BEAT):
            note(4 * BEAT)

    note(4 * BEAT)
    heart = threading.Thread(target=beat, name="rankwise debugger", daemon=True)
    heart.start()
    try:
        yield
    finally:
        over.set()
        heart.join()
        note(0)
        fcntl.lockf(memory, fcntl.LOCK_UN)
