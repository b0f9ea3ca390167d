"""rankwise as a Backend of torch.distributed, which torch's C++ calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Backend, _DistributedBackendOptions

from rankwise.contract.communicator import Communicator
from rankwise.frontends.torch.operations import NAME, Operations

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
