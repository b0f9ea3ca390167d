"""The operations that torch calls on a process group, over a communicator; for a ProcessGroup and for a Backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._distributed_c10d import Backend, _DistributedBackendOptions
from torch.distributed import Work, distributed_c10d

from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import PeerLostError, UnsupportedError
from rankwise.contract.message import ANY, no_probe
from rankwise.contract.operations import check_rank
from rankwise.contract.ranks import ranks_in_words
from rankwise.contract.timeouts import check_timeout
from rankwise.contract.work import Work as OurWork
from rankwise.frontends.torch.collectives import TorchCollectives
from rankwise.frontends.torch.core import UNSET, Core
from rankwise.frontends.torch.tensors import BY_HASH, moved, source, target
from rankwise.frontends.torch.work import Started
from rankwise.group.base import nothing
from rankwise.group.work import ArrayWork
from rankwise.system.membership import LEFT_OUT, Membership
from rankwise.system.settings import Settings

NAME = "rankwise"

MAKES_THE_GROUP = "_create_shrunk_process_group"
"""The function of torch's that makes the new group, which `group` replaces for groups of rankwise."""


SHORTCUTS = {
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "all_gather_single": "all_gather_single",
    "_allgather_base": "all_gather_single",
    "all_gather_single_coalesced": "all_gather_single_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_single": "reduce_scatter_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_single_coalesced": "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "all_to_all_single": "all_to_all_single",
    "alltoall_base": "all_to_all_single",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}
"""The methods that the engine's TorchCalls has, by the names that torch calls them by: before 2.13, the second one."""


class TorchMessages(Core):
    """Messages match by source and tag, in the order sent. Both calls return at once; `wait` completes them."""

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:
        (tensor,) = tensors
        memory = source(tensor)
        if memory.pack is not None:
            memory.pack()  # a message begins when it is called, not when the stream comes to it
        dst, number = check_rank(dstRank, self._size), _check_tag(tag)
        work = self.comm.send(memory.ptr, memory.count, moved(memory.dtype), dst, number, (tensor, memory))
        return self._message(work, tensors, nothing, memory)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:
        return self._receive(tensors, check_rank(srcRank, self._size), tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Receive from any rank; the Work's `_source_rank` returns the sender."""
        if not self.comm.any_source:
            raise no_probe("recv from any rank or with any tag", self.comm.backend)
        return self._receive(tensors, ANY, tag)

    def _receive(self, tensors: list[Tensor], src: int, tag: int) -> Work:
        (tensor,) = tensors
        memory = target(tensor)
        number, keep = _check_tag(tag), (tensor, memory)
        work: Any = self.comm.recv(memory.ptr, memory.count, moved(memory.dtype), src, number, keep)

        def finish() -> int:
            if memory.finish is not None:
                memory.finish()
            return work.source if src == ANY else src

        return self._message(work, tensors, finish, memory)

    def _message(self, inner: OurWork[None], tensors: list[Tensor], finish: Callable[[], Any], keep: object) -> Work:
        work = ArrayWork(inner, finish, self._pending, (self, tensors, keep)).register()
        return self._begun(work, tensors, message=True)


class Operations(TorchCollectives, TorchMessages):
    """The operations of a process group for tensors in host memory over `comm`, which it owns."""

    supports_splitting = False  # a RankwiseGroup does; a Backend would have to return one to ranks outside every part
    supports_coalescing = False
    supports_shrinking = hasattr(distributed_c10d, MAKES_THE_GROUP)

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        make = comm.shortcuts.torch_calls
        self._calls = make and make(self, Started, UNSET, BY_HASH)
        for name in SHORTCUTS if self._calls is not None else ():
            setattr(self, name, getattr(self._calls, SHORTCUTS[name]))

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return NAME

    name = getBackendName  # what Python asks

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long every later operation may wait for the other ranks."""
        self.comm.timeout = check_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._sequence + (0 if self._calls is None else self._calls.count)

    def start_coalescing(self) -> None:
        self._together = []
        if self._calls is not None:
            self._calls.coalescing = True

    def end_coalescing(self) -> Work:
        """One Work for all asynchronous operations since start_coalescing."""
        works, self._together = self._together or [], None
        if self._calls is not None:
            self._calls.coalescing = False
        return self._as_one(works, [])

    def abort(self) -> None:
        """Fail the group: every rank's present or next operation raises PeerLostError."""
        with suppress(UnsupportedError):
            self.comm.abort("torch.distributed aborted the process group")
        self.shutdown()

    def shutdown(self) -> None:
        """Give pending work one second, then release everything."""
        self._pending.before_close()
        self.comm.close()
        for work in list(self._expected):
            work.settle()
        self._pending.close()

    # ---- for FSDP2, if `module.set_allocate_memory_from_process_group_for_comm(True)` asks for registered memory ----

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new tensor of `size` elements in registered memory, uninitialised as `torch.empty`'s.

        The ranks' operations read and write it in place. On a backend without registered memory it is an
        ordinary tensor. Its memory is used again for the next tensor of the same size.
        """
        memory = self.comm.allocate(size * dtype.itemsize, zeroed=False) if size else None
        if memory is None:
            return torch.empty(size, dtype=dtype)
        return torch.frombuffer(np.asarray(memory), dtype=dtype, count=size)

    # ---- what torch.distributed.shrink_group asks of a backend ----

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts_override: Any = None) -> Communicator:
        """A communicator of all ranks that are not excluded. All of them must live, and call this with the same ranks.

        If one of them is lost, every caller raises a PeerLostError that names it, and may call this again to exclude it
        too. shrink_flags: SHRINK_ABORT fails this group first, so that its pending operations end. opts_override: a
        Backend.Options, whose timeout the new communicator gets.
        """
        exclude = list(ranks_to_exclude)
        if shrink_flags & distributed_c10d.SHRINK_ABORT:
            with suppress(UnsupportedError):
                self.comm.abort(f"shrink_group({exclude}, shrink_flags=SHRINK_ABORT)")
        comm = self.comm.shrink(exclude)
        missing = sorted(set(range(self._size)).difference(exclude, comm.former_ranks or ()))
        if missing:
            comm.close()
            how = self.comm.failed().get(missing[0], "")
            text = f"shrink_group({exclude}): rank {missing[0]} {how}; exclude {ranks_in_words(missing)} as well"
            raise PeerLostError(text, rank=missing[0], how=how, operation="shrink")
        settings = Settings.read()
        if self._size == settings.world_size:  # so these are the job's ranks, with their numbers
            Membership.of(settings).note(exclude, LEFT_OUT)
        comm.timeout = self.comm.timeout if opts_override is None else opts_override._timeout.total_seconds()
        return comm


def _check_tag(tag: int) -> int:
    if tag < 0:
        raise ValueError(f"tag={tag}: expected 0 or more")
    return tag


ACCEPTED = hasattr(_DistributedBackendOptions, "process_group")
"""Whether this torch accepts a Backend that is written in Python, as 2.14 and later do."""


class RankwiseBackend(Operations, Backend):
    """The CPU's backend of the process group `name`, over `comm`. ranks: its members' in torch's default group."""

    def __init__(self, comm: Communicator, name: str, ranks: Sequence[int]) -> None:
        Backend.__init__(self, comm.rank, comm.world_size)
        Operations.__init__(self, comm)
        self._options = Backend.Options(NAME, timedelta(seconds=comm.timeout))
        self._options.global_ranks_in_group = list(ranks)
        self._options.group_name = name
        _open.add(self)

    @property
    def options(self) -> Backend.Options:
        return self._options

    def shutdown(self) -> None:
        super().shutdown()
        _open.discard(self)


# torch's wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL keeps only the C++ half of a Backend alive, which has no operations.
_open: set[RankwiseBackend] = set()


def operations_over(comm: Communicator, name: str, ranks: Sequence[int] = ()) -> Operations:
    """Those of the process group `name`, where possible as a Backend. ranks: its members' in torch's default group."""
    return RankwiseBackend(comm, name, ranks) if ACCEPTED else Operations(comm)
