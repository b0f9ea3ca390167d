"""mpi4py's interface on rankwise's engine, without MPI.

    from rankwise.mpi4py import MPI
    comm = MPI.COMM_WORLD

`rankwise run -n 4 --mpi4py program.py` makes `import mpi4py` of an unchanged program find it. docs/how-to/mpi4py.md
says what there is and what differs.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "MPI":  # meets the other ranks
        from rankwise.frontends.mpi4py import MPI

        return MPI
    raise AttributeError(f"module 'rankwise.mpi4py' has no attribute {name!r}")
