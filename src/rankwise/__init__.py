"""rankwise: collective communication between processes.

    import numpy as np, rankwise as rw
    group = rw.init()                        # the launcher's ranks; alone -> one rank
    x = np.full(4, group.rank, np.float32)
    group.all_reduce(x)                      # in place, returns x

Names are loaded when they are first used, so that importing rankwise costs almost nothing; their types
are in __init__.pyi.
"""

from __future__ import annotations

import sys
from importlib import import_module

from rankwise.system.interpreter import refuse_subinterpreter

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
# Of the default group.
_OPERATIONS = (
    "abort",
    "agree",
    "all_gather",
    "all_gather_object",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "barrier",
    "batch",
    "broadcast",
    "broadcast_object",
    "close",
    "counter",
    "dup",
    "empty",
    "exscan",
    "failed",
    "gather",
    "gather_object",
    "gather_v",
    "irecv",
    "irecv_object",
    "isend",
    "isend_object",
    "lock",
    "probe",
    "recv",
    "recv_any",
    "recv_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_v",
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
    "split",
    "split_local",
    "subgroup",
)
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(["__version__", *_HOME, *_OPERATIONS, *_SUBMODULES])


refuse_subinterpreter()


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        value: object = version("rankwise")
    elif name in _SUBMODULES:
        value = import_module(f"rankwise.{name}")
    elif name in _OPERATIONS:
        value = import_module("rankwise.group.default_group").function_of(name)
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
