"""Backends by name. Each is loaded when it is first requested.

A backend is a function `open_communicator(job: Job, timeout: float) -> Communicator`: it meets the other ranks of
the job and returns this rank's communicator of all ranks. Another package offers one through an entry
point in the group "rankwise.backends", with the backend's name and the value "module:function".
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Opener = Callable[[Job, float], Communicator]

ENTRY_POINTS = "rankwise.backends"

# This package's backends compare their ranks' calls themselves, if RANKWISE_CHECK requires it.
BUILT_IN = {
    "solo": "rankwise.backends.native.solo",
    "shm": "rankwise.backends.native.shm",
    "threads": "rankwise.backends.native.threads",
    "gloo": "rankwise.backends.gloo.communicator",
    "nccl": "rankwise.backends.nccl.communicator",
    "hierarchical": "rankwise.backends.hierarchical.communicator",
    "mpi": "rankwise.backends.mpi.communicator",
}


def names() -> list[str]:
    """The names of all backends, including other packages' backends; loads none of them."""
    return sorted({*BUILT_IN, *_outside()})


def built_in(name: str) -> Callable[..., Any]:
    """What opens a backend of this package: it may take more arguments, and returns an OpenCommunicator."""
    open_communicator: Callable[..., Any] = import_module(BUILT_IN[name]).open_communicator
    return open_communicator


def opener(name: str, given: str = "backend") -> Opener:
    """Load the backend called `name`. given: what named it, for the error.

    Raises ValueError if no backend has that name; ImportError (BackendUnavailable) if what it needs is
    missing.
    """
    if name in BUILT_IN:
        return built_in(name)
    outside = _outside()
    if name in outside:
        loaded: Opener = outside[name].load()
        return loaded
    raise ValueError(f"{given}={name!r}: expected one of {', '.join(names())}")


def _outside() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
