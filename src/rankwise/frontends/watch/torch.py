"""torch.distributed's functions, whose calls are recorded.

They are replaced in the module that defines them, before torch.distributed offers them under its own name. A group is
recognised by the name that torch gives it, which all its ranks know.
"""

from __future__ import annotations

import atexit
import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from rankwise import _watch
from rankwise.contract.types import DTYPE_NAMES
from rankwise.frontends.watch.mpi import identity
from rankwise.frontends.watch.operations import REDUCTIONS, TORCH_NUMBERS

# Which argument is measured, if its size is the same on all ranks.
_MEASURED = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "all_gather": "tensor",
    "gather": "tensor",
    "scatter": "tensor",
    "all_gather_into_tensor": "input_tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
}
_PEERS = ("src", "dst", "group_src", "group_dst")
_NONE = 255


def adopt(module: Any) -> None:
    """Replace the functions in torch.distributed.distributed_c10d by ones that record their calls."""
    groups = _Groups(module)
    for name in TORCH_NUMBERS:
        if hasattr(module, name) and name != "wait":
            setattr(module, name, _recorded(groups, getattr(module, name), name))
    module.Work.wait = _recorded(groups, module.Work.wait, "wait")
    atexit.register(_watch.check)


class _Groups:
    """The groups of this process that have made a call."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.comms: dict[str, int] = {}
        self.worlds = 0  # that have been destroyed
        self.inside = threading.local()  # .call: whether this thread is in a call; torch's own calls are within others

    def comm(self, group: Any) -> int:
        """The number of a group's calls; 0 before init_process_group, and for a group without this rank."""
        module = self.module
        world = module._get_default_group() if module.is_initialized() else None
        group = world if group is None else group
        name = getattr(group, "group_name", None)
        if name is None or group is module.GroupMember.NON_GROUP_MEMBER:
            return 0
        if name not in self.comms:
            given = getattr(group, "group_desc", "undefined")
            label = "the default group" if group is world else f"group {name if given == 'undefined' else given}"
            identifier = identity("torch", self.worlds, name, module.get_process_group_ranks(group))
            self.comms[name] = _watch.add_comm(identifier, label, deferred="nccl" in str(module.get_backend(group)))
        return self.comms[name]

    def forget(self) -> None:
        """After all groups have been destroyed their names are used again."""
        for index in self.comms.values():
            _watch.remove_comm(index)
        self.comms.clear()
        self.worlds += 1


def _recorded(groups: _Groups, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = None if name == "wait" else inspect.signature(function)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        given = {} if signature is None else signature.bind_partial(*args, **keywords).arguments
        local = name == "new_group" and given.get("use_local_synchronization")  # not of all ranks
        if local or getattr(groups.inside, "call", False):
            return function(*args, **keywords)
        comm = 0 if name == "wait" else groups.comm(given.get("group"))
        root = _root(groups.module, given) if comm else 0
        reduction = _reduction(given.get("op")) if signature and "op" in signature.parameters else _NONE
        dtype, amount = _size(given.get(_MEASURED.get(name, "")))
        begun = _watch.begin(comm, TORCH_NUMBERS[name], root, reduction, dtype, amount)
        groups.inside.call = failed = True
        try:
            result = function(*args, **keywords)
            failed = False
        finally:
            groups.inside.call = False
            _watch.end(begun, failed)
        if name == "destroy_process_group" and not groups.module.is_initialized():
            groups.forget()
        return result

    return call


def _root(module: Any, given: dict[str, Any]) -> int:
    """The rank, in the default group, of the other side of a call, however the call names it; 0 if it names none."""
    for peer in _PEERS:
        if isinstance(rank := given.get(peer), int):
            ranks = module.get_process_group_ranks(given.get("group")) if peer.startswith("group_") else []
            return ranks[rank] if 0 <= rank < len(ranks) else rank
    return 0


def _reduction(op: Any) -> int:
    """The index in REDUCTIONS of torch's ReduceOp; None is SUM, the default."""
    if op is None:
        return 0
    name = str(getattr(op, "op", op)).rpartition(".")[2]
    return {"PRODUCT": 1}.get(name, REDUCTIONS.index(name) if name in REDUCTIONS else len(REDUCTIONS) - 1)


_DTYPES = {f"torch.{name}": dtype for dtype, name in DTYPE_NAMES.items()}


def _size(tensor: Any) -> tuple[int, int | None]:
    """The dtype and the number of elements of a tensor, if it is one."""
    dtype = _DTYPES.get(str(getattr(tensor, "dtype", "")))
    return (_NONE, None) if dtype is None else (int(dtype), tensor.numel())
