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

from rankwise import _watch as watch
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
    for name, number in TORCH_NUMBERS.items():
        if hasattr(module, name) and name != "wait":
            setattr(module, name, _recorded(groups, getattr(module, name), name, number))
    module.Work.wait = _recorded(groups, module.Work.wait, "wait", TORCH_NUMBERS["wait"])
    atexit.register(watch.check)


class _Groups:
    """The groups of this process that have made a call."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.comms: dict[str, int] = {}
        self.inside = threading.local()  # .call: whether this thread is in a call; torch's own calls are within others

    def comm(self, group: Any) -> int:
        """The number of a group's calls; 0 before init_process_group, and for a group without this rank."""
        module = self.module
        if group is None:
            if not module.is_initialized():
                return 0
            group = module._get_default_group()
        name = getattr(group, "group_name", None)
        if name is None or group is module.GroupMember.NON_GROUP_MEMBER:
            return 0
        if name not in self.comms:
            is_world = group is module._get_default_group()
            given = getattr(group, "group_desc", "undefined")
            label = "the default group" if is_world else f"group {name if given == 'undefined' else given}"
            ranks = module.get_process_group_ranks(group)
            deferred = "nccl" in str(module.get_backend(group))
            self.comms[name] = watch.add_comm(identity("torch", name, ranks), label, deferred)
        return self.comms[name]

    def forget(self) -> None:
        """After destroy_process_group the names are used again."""
        for index in self.comms.values():
            watch.remove_comm(index)
        self.comms.clear()


def _recorded(groups: _Groups, function: Callable[..., Any], name: str, number: int) -> Callable[..., Any]:
    parameters = () if name == "wait" else inspect.signature(function).parameters
    places = {parameter: place for place, parameter in enumerate(parameters)}

    def argument(args: tuple[Any, ...], keywords: dict[str, Any], parameter: str) -> Any:
        place = places.get(parameter)
        if place is not None and place < len(args):
            return args[place]
        return keywords.get(parameter)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        local = name == "new_group" and argument(args, keywords, "use_local_synchronization")  # not of all ranks
        if local or getattr(groups.inside, "call", False):
            return function(*args, **keywords)
        comm = 0 if name == "wait" else groups.comm(argument(args, keywords, "group"))
        root = next((each for p in _PEERS if (each := argument(args, keywords, p)) is not None), 0)
        reduction = _reduction(argument(args, keywords, "op")) if "op" in places else _NONE
        dtype, amount = _size(argument(args, keywords, _MEASURED[name])) if name in _MEASURED else (_NONE, None)
        begun = watch.begin(comm, number, root if isinstance(root, int) else 0, reduction, dtype, amount)
        groups.inside.call = True
        failed = True
        try:
            result = function(*args, **keywords)
            failed = False
        finally:
            groups.inside.call = False
            watch.end(begun, failed)
        if name == "destroy_process_group":
            groups.forget()
        return result

    return call


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
