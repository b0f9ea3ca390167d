"""rankwise: collective communication between processes.

    import numpy as np, rankwise as rw
    group = rw.init()                        # the launcher's ranks; alone -> one rank
    x = np.full(4, group.rank, np.float32)
    group.all_reduce(x)                      # in place, returns x

Names are loaded when they are first used, so that importing rankwise costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankwise.api.group import Group
    from rankwise.api.init import init
    from rankwise.api.module import (
        all_gather,
        all_gather_v,
        all_reduce,
        all_to_all,
        barrier,
        broadcast,
        close,
        gather,
        irecv,
        isend,
        recv,
        reduce,
        reduce_scatter,
        scatter,
        send,
        split,
        subgroup,
    )
    from rankwise.api.spawn import spawn
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

    __version__: str

__all__ = [
    "BackendUnavailable",
    "ClosedError",
    "CollectiveTimeout",
    "DType",
    "Group",
    "MismatchError",
    "PeerLostError",
    "RankwiseError",
    "ReduceOp",
    "UnsupportedError",
    "Work",
    "__version__",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "close",
    "gather",
    "init",
    "irecv",
    "isend",
    "recv",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send",
    "spawn",
    "split",
    "subgroup",
]

_MODULES = {
    "rankwise.api.group": ("Group",),
    "rankwise.api.init": ("init",),
    "rankwise.api.spawn": ("spawn",),
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
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("rankwise")
    elif name in __all__:
        value = getattr(import_module(_HOME.get(name, "rankwise.api.module")), name)
    else:
        raise AttributeError(f"module 'rankwise' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
