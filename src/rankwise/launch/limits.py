"""How many ranks one host can have, and one process can start."""

from __future__ import annotations

import os

MOST_RANKS = 1024  # of one host, as the shared memory allows
OWN_FILES = 16  # about as many as the launcher opens for itself


def check_ranks(n: object) -> int:
    """The number of ranks; ValueError if one host cannot have so many, TypeError if it is no number."""
    if not isinstance(n, int) or isinstance(n, bool):
        raise TypeError(f"n={n!r}: expected a number of ranks")
    if n < 1:
        raise ValueError(f"n={n}: expected a number of ranks of at least 1")
    if n > MOST_RANKS:
        raise ValueError(f"n={n}: expected at most {MOST_RANKS} ranks, as many as one host can have")
    return n


def too_few_files(n: int, started: int, each: int) -> str:
    """The error of a process that may not open the files of n ranks. started: of these. each: files for one rank."""
    limit = os.sysconf("SC_OPEN_MAX")  # the module resource could not be loaded now
    needed = max(limit, OWN_FILES) + each * (n - started)
    return (
        f"{n} ranks need about {needed} open files in the process that starts them, but its limit is "
        f"{limit}; `ulimit -n {needed}` before the command raises it"
    )
