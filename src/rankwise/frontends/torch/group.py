"""The ProcessGroup of torch.distributed over a Communicator."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch.distributed import PrefixStore, ProcessGroup, Store, Work

from rankwise.frontends.torch.backend import RankwiseBackend, operations_over
from rankwise.frontends.torch.collectives import TorchCollectives
from rankwise.frontends.torch.messages import TorchMessages
from rankwise.frontends.torch.operations import NAME, Operations

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
