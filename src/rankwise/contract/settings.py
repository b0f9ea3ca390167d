"""Every environment variable of rankwise, read in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """What the environment says. `Settings.read()` reads it afresh; nothing else looks there.

    RANKWISE_RANK           this process's rank, set by the launcher
    RANKWISE_WORLD_SIZE     how many ranks the job has, set by the launcher
    RANKWISE_SEGMENT_FD     descriptor of the job's shared memory, inherited from the launcher
    RANKWISE_LAUNCHER_PID   the launcher's pid; a rank ends when its launcher does
    RANKWISE_SECRET         a text known to this job's ranks alone, set by the launcher (128 random bits); ranks that
                            meet by a socket prove to each other that they know it
    RANKWISE_BACKEND        backend to use instead of the default (solo, shm, ...)
    RANKWISE_TIMEOUT        seconds that an operation may wait for other ranks (default 300)
    RANKWISE_TIMEOUT_STACKS 1: when an operation's time is over, the error shows the Python stacks of all ranks
    RANKWISE_TRACE          the file to which `rankwise run` writes the last operations of each rank, as its --trace
    RANKWISE_TRACE_FD       descriptor of what takes a rank's spans (rankwise.trace), set by the launcher
    RANKWISE_CHECK          1 or 0: whether ranks compare their calls before each collective on engines that do not
                            (default: on gloo yes, on mpi no)
    RANKWISE_TCL_SIMULATE   1: distributed_init of the Tcl front-end simulates its ranks, launcher or not
    RANKWISE_TCL_PYTHON     the Python that a stock tclsh starts for torchtcl; torchtcl.tcl reads it
    """

    rank: int | None = None
    world_size: int | None = None
    segment_fd: int | None = None
    launcher_pid: int | None = None
    secret: bytes = field(default=b"", repr=False)
    backend: str | None = None
    timeout: float = 300.0
    timeout_stacks: bool = False
    trace: str | None = None
    trace_fd: int | None = None
    check: bool | None = None
    tcl_simulate: bool = False

    @classmethod
    def read(cls) -> Settings:
        """Read the variables; ValueError names the one that is not what it should be."""
        return cls(
            rank=_integer("RANKWISE_RANK"),
            world_size=_integer("RANKWISE_WORLD_SIZE"),
            segment_fd=_integer("RANKWISE_SEGMENT_FD"),
            launcher_pid=_integer("RANKWISE_LAUNCHER_PID"),
            secret=os.environb.get(b"RANKWISE_SECRET", b""),
            backend=os.environ.get("RANKWISE_BACKEND") or None,
            timeout=_seconds("RANKWISE_TIMEOUT", 300.0),
            timeout_stacks=bool(_integer("RANKWISE_TIMEOUT_STACKS")),
            trace=os.environ.get("RANKWISE_TRACE") or None,
            trace_fd=_integer("RANKWISE_TRACE_FD"),
            check=None if (check := _integer("RANKWISE_CHECK")) is None else bool(check),
            tcl_simulate=bool(_integer("RANKWISE_TCL_SIMULATE")),
        )


def _integer(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name}={text!r}: expected an integer") from None


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ValueError(f"environment variable {name}={text!r}: expected a number of seconds above 0")
    return value
