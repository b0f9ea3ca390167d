"""The operations that torch calls on a process group, over a communicator; for a ProcessGroup and for a Backend."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Work

from rankwise.contract.errors import UnsupportedError
from rankwise.contract.timeouts import check_timeout
from rankwise.frontends.torch.collectives import TorchCollectives
from rankwise.frontends.torch.messages import TorchMessages
from rankwise.frontends.torch.shrinking import Shrinking

NAME = "rankwise"


class Operations(TorchCollectives, TorchMessages, Shrinking):
    """The operations of a process group for tensors in host memory over `comm`, which it owns."""

    supports_splitting = False  # a RankwiseGroup does; a Backend would have to return one to ranks outside every part
    supports_coalescing = False

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return NAME

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long every later operation may wait for the other ranks."""
        self.comm.timeout = check_timeout(timeout.total_seconds())

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        """The number of collectives that this rank has called."""
        return self._sequence

    def start_coalescing(self) -> None:
        self._together = []

    def end_coalescing(self) -> Work:
        """One Work for all asynchronous operations since start_coalescing."""
        works, self._together = self._together or [], None
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


NAME = "rankwise"
