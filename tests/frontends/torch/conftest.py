"""Functions on ranks that torch.distributed joins."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import cloudpickle
import pytest

from rankwise.testing import run_ranks

T = TypeVar("T")

OnRanks = Callable[..., list[Any]]


class InGroup:
    """`fn(rank, size)` with torch's default group of these ranks."""

    def __init__(self, fn: Callable[[int, int], T], backend: str, file: str) -> None:
        self.fn, self.backend, self.file = fn, backend, file

    def __call__(self, group: Any) -> T:
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        rank, size = group.rank, group.world_size
        dist.init_process_group(self.backend, store=dist.FileStore(self.file, size), rank=rank, world_size=size)
        # When gloo's group is freed, it joins its threads. With DDP's powerSGD hook one of them may be the last to hold
        # the group, and torch 2.15 then aborts. So the group lives until the process ends.
        atexit.register(id, dist.group.WORLD)
        try:
            return self.fn(rank, size)
        finally:
            dist.destroy_process_group()


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU, torch would choose nccl for it, and nothing for the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def on_ranks(tmp_path: Path, request: pytest.FixtureRequest) -> OnRanks:
    """on_ranks(n, fn, backend="rankwise", timeout=90): what fn(rank, n) returned on each rank."""
    for module in (sys.modules[__name__], request.module):
        assert isinstance(module, ModuleType)
        if module.__name__ not in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.register_pickle_by_value(module)  # the ranks cannot import test files

    calls = iter(range(1000))

    def run(n: int, fn: Callable[[int, int], T], backend: str = "rankwise", timeout: float = 90) -> list[T]:
        file = str(tmp_path / f"store{next(calls)}")
        return run_ranks(InGroup(fn, backend, file), n, backend="shm", timeout=timeout)

    return run
