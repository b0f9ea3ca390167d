"""Tensors in registered memory, as FSDP2 takes them for what it sends and receives."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rankwise.contract.communicator import Communicator


class RegisteredTensors:
    """`module.set_allocate_memory_from_process_group_for_comm(True)` makes FSDP2 call these."""

    comm: Communicator

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
