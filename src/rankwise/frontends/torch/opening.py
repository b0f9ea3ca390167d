"""Opens rankwise for a process group of torch.distributed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed import DebugLevel, PrefixStore, distributed_c10d, get_debug_level

from rankwise.contract.communicator import Communicator
from rankwise.frontends.torch import meeting
from rankwise.frontends.torch.backend import ACCEPTED, operations_over
from rankwise.frontends.torch.group import CPU, RankwiseGroup
from rankwise.frontends.torch.operations import Operations
from rankwise.frontends.torch.shrinking import MAKES_THE_GROUP

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
