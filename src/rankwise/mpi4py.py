"""mpi4py's interface on rankwise's engine, without MPI.

    from rankwise.mpi4py import MPI
    comm = MPI.COMM_WORLD

With `rankwise run -n 4 --mpi4py program.py`, `import mpi4py` in an unchanged program finds this interface.
docs/how-to/mpi4py.md lists what it provides and how it differs from mpi4py on MPI.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MPI":  # meets the other ranks
        from rankwise.frontends.mpi4py import MPI

        return MPI
    raise AttributeError(f"module 'rankwise.mpi4py' has no attribute {name!r}")
