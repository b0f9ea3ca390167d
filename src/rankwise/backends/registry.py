"""Backends by name. Each is loaded when it is first asked for.

A backend is a function `open(job: Job, timeout: float) -> Communicator`: it meets the other ranks of
the job and gives this rank's communicator of them all. An outside package offers one through an
entry point of the group "rankwise.backends", its name that of the backend, its value "module:function".
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Opener = Callable[[Job, float], Communicator]

ENTRY_POINTS = "rankwise.backends"

# Those of this package compare their ranks' calls themselves, as RANKWISE_CHECK says.
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
    """The names of all backends, those of other packages included; loads none of them."""
    return sorted({*BUILT_IN, *_outside()})


def opener(name: str) -> Opener:
    """Load the backend called `name`.

    ValueError where there is none of that name; ImportError (BackendUnavailable) where what it
    needs is missing.
    """
    if name in BUILT_IN:
        found: Opener = import_module(BUILT_IN[name]).open
        return found
    outside = _outside()
    if name in outside:
        loaded: Opener = outside[name].load()
        return loaded
    raise ValueError(f"backend={name!r}: expected one of {', '.join(names())}")


def _outside() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slow to import

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
