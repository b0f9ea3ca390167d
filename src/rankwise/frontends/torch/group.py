"""The ProcessGroup of torch.distributed over a Communicator."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, Store, Work

from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import MismatchError
from rankwise.frontends.torch import meeting
from rankwise.frontends.torch.allocation import RegisteredTensors
from rankwise.frontends.torch.collectives import TorchCollectives
from rankwise.frontends.torch.messages import TorchMessages

NAME = "rankwise"
_CPU = torch.device("cpu")


def open_group(store: Store, rank: int, size: int, timeout: timedelta, ranks: Sequence[int] = ()) -> RankwiseGroup:
    """Meet the other ranks through `store`; torch calls this for every process group, on all of its ranks.

    ranks: the members' ranks in torch's default group; empty for the default group itself.
    """
    world = torch.distributed.group.WORLD if ranks else None
    parent = world.comm if isinstance(world, RankwiseGroup) else None
    return RankwiseGroup(meeting.meet(store, rank, size, timeout.total_seconds(), parent, ranks), store)


class RankwiseGroup(TorchCollectives, TorchMessages, RegisteredTensors):
    """A process group for tensors in host memory over `comm`, which it owns."""

    supports_splitting = True
    supports_coalescing = False

    def __init__(self, comm: Communicator, store: Store) -> None:
        super().__init__(comm, store)
        self._group_name = ""
        self._group_desc = ""

    def __repr__(self) -> str:
        return f"<{NAME} process group {self._group_name!r}, rank {self._rank} of {self._size}>"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    # torch's C++ calls methods of these names; DeviceMesh and functional collectives find a group by its name.
    def getBackendName(self) -> str:
        return NAME

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, text: str) -> None:
        self._group_desc = text

    @property
    def group_name(self) -> str:
        return self._group_name

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def get_group_store(self) -> Store:
        return self.store

    @property
    def _device_types(self) -> list[torch.device]:
        return [_CPU]

    def _get_backend(self, device: torch.device) -> RankwiseGroup:
        """This group, which serves as its own backend object for CPU tensors. RuntimeError for other devices."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"this process group is for tensors in host memory, not for {device}")
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long every later operation may wait for the other ranks."""
        self.comm.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._sequence

    def _start_coalescing(self, device: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, device: torch.device) -> Work:
        works, self._together = self._together or [], None
        return self._as_one(works, [])

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> RankwiseGroup | None:
        """Collective: a new group of these ranks of this group; None on a rank that is not among them.

        Every rank of this group calls it; one call may create several disjoint groups.
        """
        members = sorted(ranks)
        if self._rank not in members:
            self.comm.split(-1, 0)
            return None
        comm = self.comm.split(zlib.crc32(repr(members).encode()) & 0x7FFFFFFF, self._rank)
        assert comm is not None  # the color is not below 0
        if comm.world_size != len(members):
            size = comm.world_size
            comm.close()
            raise MismatchError(f"split_group(ranks={members}): only {size} of these ranks asked for it")
        name = group_name or f"{self._group_name}:split:{members}"
        part = RankwiseGroup(comm, PrefixStore(f"{name}/", self.store))
        part.setGroupName(name)
        part.setGroupDesc(group_desc or name)
        if timeout is not None:
            part.set_timeout(timeout)
        return part

    splitGroup = split_group

    def abort(self) -> None:
        """Fail the group: every rank's present or next operation raises PeerLostError."""
        abort: Any = getattr(self.comm, "abort", None)
        if abort is not None:
            abort("aborted the process group")
        self.shutdown()

    def shutdown(self) -> None:
        """Give pending work one second, then release everything."""
        self._pending.before_close()
        self.comm.close()
        for work in list(self._expected):
            work.settle()
        self._pending.close()
