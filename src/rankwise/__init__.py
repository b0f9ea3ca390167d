"""rankwise: collective communication between processes.

    import numpy as np, rankwise as rw
    group = rw.init()                        # the launcher's ranks; alone -> one rank
    x = np.full(4, group.rank, np.float32)
    group.all_reduce(x)                      # in place, returns x

Names are loaded when they are first used, so that importing rankwise costs almost nothing.
"""

from __future__ import annotations

from importlib import import_module

from rankwise.system.interpreter import refuse_subinterpreter

TYPE_CHECKING = False  # the launcher does not import typing
if TYPE_CHECKING:
    from typing import Any

    from rankwise import autograd, elastic, overlap, testing, trace
    from rankwise.contract.errors import (
        BackendUnavailable,
        ClosedError,
        CollectiveTimeout,
        MismatchError,
        PeerLostError,
        RankwiseError,
        UnsupportedError,
    )
    from rankwise.contract.message import ANY, Message
    from rankwise.contract.types import DType, ReduceOp
    from rankwise.contract.work import Work
    from rankwise.group.default_group import default_group as _default
    from rankwise.group.default_group import registered
    from rankwise.group.farm import TaskError
    from rankwise.group.group import Group
    from rankwise.group.mesh import Mesh
    from rankwise.group.messages import Received
    from rankwise.group.sharing import Counter, Lock
    from rankwise.group.work import wait_all, wait_any
    from rankwise.initialize import init
    from rankwise.launch.spawn import spawn
    from rankwise.pool.local import local
    from rankwise.pool.pool import Pool
    from rankwise.system.library import get_cmake_dir, get_include, get_library

    __version__: str

    # A function of the module has the type of the default group's bound method.
    abort = _default().abort
    agree = _default().agree
    all_gather = _default().all_gather
    all_gather_object = _default().all_gather_object
    all_gather_v = _default().all_gather_v
    all_reduce = _default().all_reduce
    all_to_all = _default().all_to_all
    all_to_all_v = _default().all_to_all_v
    barrier = _default().barrier
    batch = _default().batch
    broadcast = _default().broadcast
    broadcast_object = _default().broadcast_object
    close = _default().close
    counter = _default().counter
    dup = _default().dup
    empty = _default().empty
    exscan = _default().exscan
    failed = _default().failed
    gather = _default().gather
    gather_object = _default().gather_object
    gather_v = _default().gather_v
    irecv = _default().irecv
    irecv_object = _default().irecv_object
    isend = _default().isend
    isend_object = _default().isend_object
    lock = _default().lock
    probe = _default().probe
    recv = _default().recv
    recv_any = _default().recv_any
    recv_object = _default().recv_object
    reduce = _default().reduce
    reduce_scatter = _default().reduce_scatter
    reduce_scatter_v = _default().reduce_scatter_v
    restore = _default().restore
    rng = _default().rng
    scan = _default().scan
    scatter = _default().scatter
    scatter_object = _default().scatter_object
    scatter_v = _default().scatter_v
    send = _default().send
    send_object = _default().send_object
    sendrecv = _default().sendrecv
    share = _default().share
    shared_zeros = _default().shared_zeros
    shrink = _default().shrink
    split = _default().split
    split_local = _default().split_local
    subgroup = _default().subgroup

__all__ = [
    "ANY",
    "BackendUnavailable",
    "ClosedError",
    "CollectiveTimeout",
    "Counter",
    "DType",
    "Group",
    "Lock",
    "Mesh",
    "Message",
    "MismatchError",
    "PeerLostError",
    "Pool",
    "RankwiseError",
    "Received",
    "ReduceOp",
    "TaskError",
    "UnsupportedError",
    "Work",
    "__version__",
    "abort",
    "agree",
    "all_gather",
    "all_gather_object",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "autograd",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_object",
    "close",
    "counter",
    "dup",
    "elastic",
    "empty",
    "exscan",
    "failed",
    "gather",
    "gather_object",
    "gather_v",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "init",
    "irecv",
    "irecv_object",
    "isend",
    "isend_object",
    "local",
    "lock",
    "overlap",
    "probe",
    "recv",
    "recv_any",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "registered",
    "restore",
    "rng",
    "scan",
    "scatter",
    "scatter_object",
    "scatter_v",
    "send",
    "send_object",
    "sendrecv",
    "share",
    "shared_zeros",
    "shrink",
    "spawn",
    "split",
    "split_local",
    "subgroup",
    "testing",
    "trace",
    "wait_all",
    "wait_any",
]

_MODULES = {
    "rankwise.group.mesh": ("Mesh",),
    "rankwise.group.sharing": ("Counter", "Lock"),
    "rankwise.group.farm": ("TaskError",),
    "rankwise.group.messages": ("Received",),
    "rankwise.group.default_group": ("registered",),
    "rankwise.group.group": ("Group",),
    "rankwise.initialize": ("init",),
    "rankwise.group.work": ("wait_all", "wait_any"),
    "rankwise.contract.message": ("ANY", "Message"),
    "rankwise.launch.spawn": ("spawn",),
    "rankwise.pool.local": ("local",),
    "rankwise.pool.pool": ("Pool",),
    "rankwise.system.library": ("get_cmake_dir", "get_include", "get_library"),
    "rankwise.contract.types": ("DType", "ReduceOp"),
    "rankwise.contract.work": ("Work",),
    "rankwise.contract.errors": (
        "BackendUnavailable",
        "ClosedError",
        "CollectiveTimeout",
        "MismatchError",
        "PeerLostError",
        "RankwiseError",
        "UnsupportedError",
    ),
}
_SUBMODULES = ("autograd", "elastic", "overlap", "testing", "trace")
_HOME = {name: module for module, names in _MODULES.items() for name in names}


refuse_subinterpreter()


def _load(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("rankwise")
    elif name in _SUBMODULES:
        value = import_module(f"rankwise.{name}")
    elif name in __all__:
        module = import_module(_HOME.get(name, "rankwise.group.default_group"))
        value = getattr(module, name) if name in _HOME else module.function_of(name)
    else:
        from difflib import get_close_matches  # slow to import

        near = get_close_matches(name.lower(), __all__, n=1, cutoff=0.75)
        advice = f". Did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}{advice}", name=name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # to a type checker it would mean that every name exists
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(__all__)
