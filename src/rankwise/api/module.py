"""The operations as functions of the module, on the default group."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from rankwise.api.group import Group
from rankwise.api.init import default_group

P = ParamSpec("P")
R = TypeVar("R")


def _on_default_group(method: Callable[Concatenate[Group, P], R]) -> Callable[P, R]:
    """`method` as a function that finds its group itself; the docstring and the other parameters stay."""

    @functools.wraps(method)
    def operation(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(default_group(), *args, **kwargs)

    signature = inspect.signature(method)
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    operation.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    operation.__qualname__ = method.__name__
    operation.__module__ = "rankwise"
    return operation


barrier = _on_default_group(Group.barrier)
broadcast = _on_default_group(Group.broadcast)
all_reduce = _on_default_group(Group.all_reduce)
reduce = _on_default_group(Group.reduce)
gather = _on_default_group(Group.gather)
all_gather = _on_default_group(Group.all_gather)
all_gather_v = _on_default_group(Group.all_gather_v)
scatter = _on_default_group(Group.scatter)
reduce_scatter = _on_default_group(Group.reduce_scatter)
all_to_all = _on_default_group(Group.all_to_all)
send = _on_default_group(Group.send)
recv = _on_default_group(Group.recv)
isend = _on_default_group(Group.isend)
irecv = _on_default_group(Group.irecv)
split = _on_default_group(Group.split)
subgroup = _on_default_group(Group.subgroup)
close = _on_default_group(Group.close)
