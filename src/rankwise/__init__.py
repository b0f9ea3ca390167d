"""rankwise: collective communication between processes.

    import numpy as np, rankwise as rw
    group = rw.init()                        # the launcher's ranks; alone -> one rank
    x = np.full(4, group.rank, np.float32)
    group.all_reduce(x)                      # in place, returns x

Names are loaded when they are first used, so that importing rankwise costs almost nothing.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # the launcher does not import typing
if TYPE_CHECKING:
    from typing import Any

    from rankwise import autograd
    from rankwise.arrays.ops import premul_sum
    from rankwise.contract.communicator import Message
    from rankwise.contract.errors import (
        BackendUnavailable,
        ClosedError,
        CollectiveTimeout,
        MismatchError,
        PeerLostError,
        RankwiseError,
        UnsupportedError,
    )
    from rankwise.contract.types import DType, ReduceOp
    from rankwise.contract.work import Work
    from rankwise.group.group import Group
    from rankwise.group.mesh import Mesh
    from rankwise.group.streams import Event, Stream
    from rankwise.group.work import wait_all, wait_any
    from rankwise.initialize import default_group as _default
    from rankwise.initialize import init, registered
    from rankwise.launch.spawn import spawn
    from rankwise.observe import trace
    from rankwise.overlap.compression import BF16Hook, TopKHook
    from rankwise.overlap.data_parallel import DataParallel, data_parallel
    from rankwise.overlap.reducer import Bucket, BucketHook, GradientReducer

    __version__: str

    # A function of the module has the type of the default group's bound method.
    all_gather = _default().all_gather
    all_gather_object = _default().all_gather_object
    all_gather_v = _default().all_gather_v
    all_reduce = _default().all_reduce
    all_reduce_plan = _default().all_reduce_plan
    all_to_all = _default().all_to_all
    all_to_all_v = _default().all_to_all_v
    barrier = _default().barrier
    batch = _default().batch
    broadcast = _default().broadcast
    broadcast_object = _default().broadcast_object
    broadcast_plan = _default().broadcast_plan
    close = _default().close
    dup = _default().dup
    empty = _default().empty
    exscan = _default().exscan
    gather = _default().gather
    gather_object = _default().gather_object
    gather_v = _default().gather_v
    irecv = _default().irecv
    isend = _default().isend
    probe = _default().probe
    recv = _default().recv
    reduce = _default().reduce
    reduce_scatter = _default().reduce_scatter
    reduce_scatter_v = _default().reduce_scatter_v
    scan = _default().scan
    scatter = _default().scatter
    scatter_object = _default().scatter_object
    scatter_v = _default().scatter_v
    send = _default().send
    split = _default().split
    subgroup = _default().subgroup

__all__ = [
    "BF16Hook",
    "BackendUnavailable",
    "Bucket",
    "BucketHook",
    "ClosedError",
    "CollectiveTimeout",
    "DType",
    "DataParallel",
    "Event",
    "GradientReducer",
    "Group",
    "Mesh",
    "Message",
    "MismatchError",
    "PeerLostError",
    "RankwiseError",
    "ReduceOp",
    "Stream",
    "TopKHook",
    "UnsupportedError",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_object",
    "all_gather_v",
    "all_reduce",
    "all_reduce_plan",
    "all_to_all",
    "all_to_all_v",
    "autograd",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_object",
    "broadcast_plan",
    "close",
    "data_parallel",
    "dup",
    "empty",
    "exscan",
    "gather",
    "gather_object",
    "gather_v",
    "init",
    "irecv",
    "isend",
    "premul_sum",
    "probe",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
    "registered",
    "scan",
    "scatter",
    "scatter_object",
    "scatter_v",
    "send",
    "spawn",
    "split",
    "subgroup",
    "trace",
    "wait_all",
    "wait_any",
]

_MODULES = {
    "rankwise.overlap.compression": ("BF16Hook", "TopKHook"),
    "rankwise.overlap.data_parallel": ("DataParallel", "data_parallel"),
    "rankwise.overlap.reducer": ("Bucket", "BucketHook", "GradientReducer"),
    "rankwise.group.mesh": ("Mesh",),
    "rankwise.group.group": ("Group",),
    "rankwise.initialize": ("init", "registered"),
    "rankwise.arrays.ops": ("premul_sum",),
    "rankwise.group.streams": ("Event", "Stream"),
    "rankwise.group.work": ("wait_all", "wait_any"),
    "rankwise.contract.communicator": ("Message",),
    "rankwise.launch.spawn": ("spawn",),
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
_SUBMODULES = {"autograd": "rankwise.autograd", "trace": "rankwise.observe.trace"}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def _load(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("rankwise")
    elif name in _SUBMODULES:
        value = import_module(_SUBMODULES[name])
    elif name in __all__:
        home = _HOME.get(name)
        value = (
            getattr(import_module(home), name) if home else import_module("rankwise.module_functions").function_of(name)
        )
    else:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
    globals()[name] = value
    return value


if not TYPE_CHECKING:  # to a type checker it would mean that every name exists
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted(__all__)
