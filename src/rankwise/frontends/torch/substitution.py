"""RANKWISE_TORCH_AS: process groups that keep another backend's name and communicate through rankwise."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch
from torch.distributed import Backend, distributed_c10d
from torch.distributed.distributed_c10d import BackendConfig

OURS = "rankwise"


def substitute(name: str) -> None:
    """From now on, use rankwise for CPU tensors wherever a program asks torch.distributed for the backend `name`.

    This covers init_process_group and new_group, whether they name it alone, among the backends of several
    devices, or not at all where it is the default. torch keeps the name that the program gave:
    dist.get_backend() returns it, and groups created without a name inherit it.
    """
    original: Callable[..., Any] = distributed_c10d._new_process_group_helper

    @wraps(original)
    def helper(size: int, rank: int, ranks: list[int], backend: str, *args: Any, **options: Any) -> Any:
        replacement = _with_rankwise(backend, name)
        if replacement is None:
            return original(size, rank, ranks, backend, *args, **options)
        group, store = original(size, rank, ranks, Backend(replacement), *args, **options)
        world = distributed_c10d._world
        if group in world.pg_map:  # a rank that is no member gets a placeholder, which is not there
            world.pg_map[group] = (backend, store)
            world.pg_backend_config[group] = str(BackendConfig(Backend(backend)))
        return group, store

    distributed_c10d._new_process_group_helper = helper


def _with_rankwise(backend: str, name: str) -> str | None:
    """`backend` with rankwise in place of `name` for the CPU; None if it is to stay as it is."""
    from rankwise.frontends.torch.operations import ACCEPTED

    devices: dict[str, str] = BackendConfig(Backend(backend)).get_device_backend_map()
    if devices.get("cpu") != name:
        return None
    others = [f"{device}:{other}" for device, other in devices.items() if device != "cpu" and other != name]
    if others and not ACCEPTED:
        _log_once(
            logging.WARNING,
            f"RANKWISE_TORCH_AS={name}: {backend} stays as it is, because torch {torch.__version__} cannot combine "
            f"{OURS} with {', '.join(others)} in one process group; torch 2.14 and later can",
        )
        return None
    _log_once(
        logging.INFO,
        f"RANKWISE_TORCH_AS={name}: process groups of the backend {name} communicate through {OURS}; "
        f"torch.distributed still names their backend {name}",
    )
    return ",".join([f"cpu:{OURS}", *others]) if others else OURS


@cache
def _log_once(level: int, text: str) -> None:
    logging.getLogger("rankwise").log(level, text)
