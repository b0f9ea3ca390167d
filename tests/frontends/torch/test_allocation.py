"""Tensors in registered memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed


def test_registered_tensors(on_ranks: Callable[..., Any]) -> None:
    def body(rank: int, size: int) -> None:
        cpu = torch.device("cpu")
        group = dist.group.WORLD
        backend = group._get_backend(cpu)
        assert backend.supports_tensor_alloc(cpu)
        assert not backend.supports_tensor_alloc(torch.device("cuda"))
        for dtype in (torch.float32, torch.bfloat16, torch.bool):
            x = backend.allocate_tensor(5000, dtype=dtype, device=cpu)
            assert (x.shape, x.dtype) == ((5000,), dtype)
            address = x.data_ptr()
            assert backend.comm._comm.in_segment(address, x.nbytes)
            x.fill_(rank == 1)
            dist.broadcast(x, 1)
            assert x.all()
            del x  # the next of its size gets its memory
            assert backend.allocate_tensor(5000, dtype=dtype, device=cpu).data_ptr() == address
        assert backend.allocate_tensor(0, dtype=torch.float32, device=cpu).numel() == 0

    on_ranks(2, body)
