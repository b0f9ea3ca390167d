"""The module `mpi4py.MPI`: its classes, constants and functions on rankwise's engine."""

# ruff: noqa: F401 - what it imports without an underscore are its names

from __future__ import annotations

import platform
import threading
import time
from typing import Any

import rankwise as rw
from rankwise.frontends.mpi4py import datatypes as _datatypes
from rankwise.frontends.mpi4py import errors as _errors
from rankwise.frontends.mpi4py import ops as _ops
from rankwise.frontends.mpi4py.buffers import buffer
from rankwise.frontends.mpi4py.comm import (
    APPNUM,
    COMM_NULL,
    COMM_TYPE_HW_GUIDED,
    COMM_TYPE_HW_UNGUIDED,
    COMM_TYPE_RESOURCE_GUIDED,
    COMM_TYPE_SHARED,
    HOST,
    IO,
    KEYVAL_INVALID,
    LASTUSEDCODE,
    TAG_UB,
    UNIVERSE_SIZE,
    WTIME_IS_GLOBAL,
    Cartcomm,
    Comm,
    Intercomm,
    Intracomm,
)
from rankwise.frontends.mpi4py.context import Context as _Context
from rankwise.frontends.mpi4py.datatypes import (
    DISTRIBUTE_BLOCK,
    DISTRIBUTE_CYCLIC,
    DISTRIBUTE_DFLT_DARG,
    DISTRIBUTE_NONE,
    ORDER_C,
    ORDER_F,
    ORDER_FORTRAN,
    TYPECLASS_COMPLEX,
    TYPECLASS_INTEGER,
    TYPECLASS_LOGICAL,
    TYPECLASS_REAL,
    Datatype,
)
from rankwise.frontends.mpi4py.errors import Exception
from rankwise.frontends.mpi4py.groups import CONGRUENT, GROUP_EMPTY, GROUP_NULL, IDENT, SIMILAR, UNEQUAL, Group
from rankwise.frontends.mpi4py.handles import (
    ERRHANDLER_NULL,
    ERRORS_ABORT,
    ERRORS_ARE_FATAL,
    ERRORS_RETURN,
    Errhandler,
)
from rankwise.frontends.mpi4py.info import INFO_ENV, INFO_NULL, Info
from rankwise.frontends.mpi4py.messages import MESSAGE_NO_PROC, MESSAGE_NULL, Message
from rankwise.frontends.mpi4py.ops import Op
from rankwise.frontends.mpi4py.pickling import PICKLE as pickle
from rankwise.frontends.mpi4py.pickling import Pickle
from rankwise.frontends.mpi4py.requests import REQUEST_NULL, Prequest, Request
from rankwise.frontends.mpi4py.specs import BOTTOM, BUFFER_AUTOMATIC, IN_PLACE
from rankwise.frontends.mpi4py.status import ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED, Status
from rankwise.frontends.mpi4py.topology import CART, DIST_GRAPH, GRAPH, Compute_dims
from rankwise.frontends.mpi4py.windows import CONSTANTS as _OF_WINDOWS
from rankwise.frontends.mpi4py.windows import WIN_NULL, Win
from rankwise.frontends.mpi4py.world import WORLD as _WORLD

globals().update(_datatypes.PREDEFINED, **_ops.OPS, **_errors.CODES, **_OF_WINDOWS)
_typedict = _datatypes.TYPES

VERSION, SUBVERSION = 3, 1
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
ROOT = -3
BSEND_OVERHEAD = 0
MAX_PROCESSOR_NAME, MAX_ERROR_STRING, MAX_OBJECT_NAME, MAX_LIBRARY_VERSION_STRING = 256, 1024, 128, 8192
COMM_WORLD = Intracomm._of(_Context(_WORLD.group, "MPI_COMM_WORLD"))._named("COMM_WORLD")
COMM_SELF = Intracomm._of(_Context(_WORLD.own, "MPI_COMM_SELF"))._named("COMM_SELF")
Attach_buffer = COMM_WORLD.Attach_buffer
Detach_buffer = COMM_WORLD.Detach_buffer
Flush_buffer = COMM_WORLD.Flush_buffer
Iflush_buffer = COMM_WORLD.Iflush_buffer
memory = buffer


def Init() -> None:
    """Nothing to do: the ranks already connected when MPI was imported."""


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    return THREAD_MULTIPLE


def Finalize() -> None:
    """Wait for all ranks; the process may go on without MPI."""
    if not _WORLD.finalized:
        _WORLD.finalized = True
        _WORLD.group.barrier()


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return _WORLD.finalized


def Is_thread_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Get_version() -> tuple[int, int]:
    """The version of the MPI standard whose calls there are."""
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    return f"rankwise {rw.__version__}, mpi4py's interface without MPI"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    numbers = [int(part) for part in rw.__version__.split(".")[:3] if part.isdecimal()]
    major, minor, micro = [*numbers, 0, 0, 0][:3]
    return "rankwise", (major, minor, micro)


Get_processor_name, Wtime = platform.node, time.perf_counter


def Wtick() -> float:
    return time.get_clock_info("perf_counter").resolution


def Alloc_mem(size: int, info: Any = None) -> buffer:
    return buffer.allocate(size)


def Free_mem(mem: Any) -> None:
    """Nothing to do: Python frees the memory."""


def Get_address(location: Any) -> int:
    return buffer(location).address


def Aint_add(base: int, disp: int) -> int:
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    return addr1 - addr2


def Get_error_class(errorcode: int) -> int:
    return errorcode


def Get_error_string(errorcode: int) -> str:
    return Exception(errorcode).error_string


def Pcontrol(level: int) -> None:
    """Nothing to do: there is no profiling library."""


def _comm_lock(comm: Comm, key: Any = None) -> Any:
    """A lock of the communicator for mpi4py.util, by key."""
    return comm._live().locks.setdefault(key, threading.Lock())


def _commctx_intra(comm: Comm) -> tuple[Comm, int]:
    """A communicator of the same ranks, and a tag, for mpi4py.util's own messages. Collective at first."""
    table = comm._live().locks
    if "@context" not in table:
        table["@context"] = comm.Dup()
    return table["@context"], 0


_commctx_inter = _errors.Absent("MPI.Intercomm")
_sizeof, _addressof, _handleof = (
    _errors.Absent(f"MPI.{name} (C handles)") for name in ("_sizeof", "_addressof", "_handleof")
)
File, Session, Grequest, Graphcomm, Distgraphcomm, Topocomm = (
    _errors.Absent(f"MPI.{name}") for name in ("File", "Session", "Grequest", "Graphcomm", "Distgraphcomm", "Topocomm")
)


def __getattr__(name: str) -> Any:
    if name in _errors.CALLS:
        return _errors.Absent(f"MPI.{name}")
    raise AttributeError(f"module 'mpi4py.MPI' has no attribute {name!r} (rankwise's mpi4py; MPI's may have it)")
