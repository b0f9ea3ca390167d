"""The ProcessGroup of torch.distributed over a Communicator."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any

import torch
from torch.distributed import DebugLevel, PrefixStore, ProcessGroup, Store, Work, distributed_c10d, get_debug_level

from rankwise.contract.communicator import Communicator
from rankwise.frontends.torch import meeting
from rankwise.frontends.torch.collectives import TorchCollectives
from rankwise.frontends.torch.operations import (
    ACCEPTED,
    MAKES_THE_GROUP,
    NAME,
    Operations,
    RankwiseBackend,
    TorchMessages,
    operations_over,
)

CPU = torch.device("cpu")

METHODS = [
    name
    for kind in (TorchCollectives, TorchMessages, Operations)
    for name, value in vars(kind).items()
    if callable(value) and not name.startswith("__")
]


class RankwiseGroup(ProcessGroup):
    """A process group whose only backend is rankwise; the methods of `operations` are its own."""

    def __init__(self, operations: Operations, store: Store) -> None:
        if isinstance(operations, RankwiseBackend):  # torch's C++ finds it there
            super().__init__(store, operations.rank(), operations.size())
            self._set_default_backend(ProcessGroup.BackendType.CUSTOM)
            self._register_backend(CPU, ProcessGroup.BackendType.CUSTOM, operations)
        else:
            super().__init__(operations.rank(), operations.size())  # type: ignore[call-arg]
        operations.supports_splitting = True
        self.operations = operations
        self.store = store
        self._group_name = ""
        self._group_desc = ""
        for name in METHODS:  # without a call in between: an operation of a few bytes takes a microsecond
            setattr(self, name, getattr(operations, name))

    def __repr__(self) -> str:
        return f"<{NAME} process group {self._group_name!r}, rank {self.rank()} of {self.size()}>"

    # torch's C++ calls the methods without an underscore, its Python those with one, which in older torch do not
    # call the former. DeviceMesh and functional collectives find a group by its name.
    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, text: str) -> None:
        self._group_desc = text

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def get_group_store(self) -> Store:
        return self.store

    @property
    def _device_types(self) -> list[torch.device]:
        return [CPU]

    def _get_backend(self, device: torch.device) -> Operations:
        """The backend for CPU tensors. RuntimeError for other devices."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"this process group is for tensors in host memory, not for {device}")
        return self.operations

    def _start_coalescing(self, device: torch.device) -> None:
        self.operations.start_coalescing()

    def _end_coalescing(self, device: torch.device) -> Work:
        return self.operations.end_coalescing()

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> RankwiseGroup | None:
        """Collective: a new group of these ranks of this group, in this order; None on a rank that is not among them.

        Every rank of this group calls it; one call may create several disjoint groups.
        """
        members = list(ranks)
        comm = self.operations.comm.subgroup(members)
        if comm is None:
            return None
        name = group_name or f"{self._group_name}:split:{members}"
        part = RankwiseGroup(operations_over(comm, name), PrefixStore(f"{name}/", self.store))
        part.setGroupName(name)
        part.setGroupDesc(group_desc or name)
        if timeout is not None:
            part.operations.set_timeout(timeout)
        return part

    splitGroup = split_group


# ---- how torch opens a group ----

RECORDER_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")


def open_group(how: Any) -> RankwiseGroup | Operations:
    """Meet the other ranks of a group; torch calls this for each of its groups, on all ranks of the group.

    how: torch's description of the group. The result is the whole group if rankwise is its only backend:
    torch then calls rankwise directly. Otherwise, and if torch is to observe the calls, it is the group's
    backend for the CPU, which torch's own ProcessGroup calls.
    """
    ranks = list(how.global_ranks_in_group)  # in the default group; none for the default group itself
    parent = _comm_of(torch.distributed.group.WORLD) if ranks else None
    comm = meeting.meet(how.store, how.group_rank, how.group_size, how.timeout.total_seconds(), parent, ranks)
    operations = operations_over(comm, how.group_id, ranks)
    if ACCEPTED and (how.process_group.name() != "custom" or _observed()):
        operations.dispatched = True
        return operations
    return RankwiseGroup(operations, how.store)


def _make_smaller_groups() -> None:
    """From now on, make a RankwiseGroup wherever torch.distributed.shrink_group makes a group of rankwise.

    torch itself would register any backend for the CPU as if it were a ProcessGroupGloo. Before 2.14 it then refuses a
    backend that is not written in C++; from 2.14 on, DistributedDataParallel reads fields of a ProcessGroupGloo that
    the backend does not have.
    """
    original: Callable[..., Any] = getattr(distributed_c10d, MAKES_THE_GROUP)

    @wraps(original)
    def create(backend: object, remaining_ranks: list[int], metadata: dict[str, Any], is_default: bool) -> Any:
        if not isinstance(backend, Communicator):
            return original(backend, remaining_ranks, metadata, is_default)
        name = metadata["new_group_name"]
        operations = operations_over(backend, name, [] if is_default else remaining_ranks)
        group = RankwiseGroup(operations, PrefixStore(f"{name}/", metadata["store"]))
        group.setGroupName(name)
        group.setGroupDesc("default:shrunken" if is_default else f"{metadata['original_group_name']}:shrunk")
        return group

    setattr(distributed_c10d, MAKES_THE_GROUP, create)


if Operations.supports_shrinking:
    _make_smaller_groups()


def _comm_of(group: Any) -> Communicator | None:
    """The communicator of a group, if rankwise serves its CPU tensors."""
    try:
        backend = group._get_backend(CPU)
    except RuntimeError:
        return None
    while hasattr(backend, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend = backend.wrapped_pg
    return backend.comm if isinstance(backend, Operations) else None


def _observed() -> bool:
    """Whether torch was asked for a tool that its own ProcessGroup calls around each operation."""
    size = next((value for name in RECORDER_SIZES if (value := os.environ.get(name))), "0")
    return get_debug_level() == DebugLevel.DETAIL or size != "0" or os.environ.get("TORCH_DIST_NAN_CHECK", "0") == "1"
