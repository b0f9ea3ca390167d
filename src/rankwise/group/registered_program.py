"""RANKWISE_REGISTERED=1: NumPy allocates the arrays of a whole program in registered memory."""

from __future__ import annotations

import atexit
import os
import warnings
from functools import lru_cache

from rankwise.contract.communicator import Communicator


def begin(comm: Communicator) -> None:
    """From now on, this thread's new arrays of at least a page lie in registered memory, if the backend has any.

    So do those of asyncio's tasks, which take over the context, but not those of other threads. A process that is
    forked shares the arrays with its parent, and makes ordinary ones.
    """
    context = comm.allocating()
    context.__enter__()

    def end() -> None:
        context.__exit__(None, None, None)

    atexit.register(end)
    os.register_at_fork(before=_warn_of_forks, after_in_child=end)


@lru_cache(1)  # once
def _warn_of_forks() -> None:
    warnings.warn(
        "a fork of a program whose arrays are in registered memory (RANKWISE_REGISTERED=1): the child shares the "
        "arrays instead of having copies, so what one of the two writes, the other sees; expected a child that only "
        'reads them, or a new process (multiprocessing\'s start method "spawn")',
        RuntimeWarning,
        stacklevel=2,
    )
