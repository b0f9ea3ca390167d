"""A process's job, as its launcher describes it: what a backend needs to meet the other ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


@dataclass(frozen=True)
class Job:
    """One rank's position in its job.

    rank, world_size              as everywhere: 0 <= rank < world_size
    local_rank, local_world_size  the same among the ranks of this host, or None if the launcher does not set them
    node                          the number of this rank's node in the job, or None if the launcher does not set it
    launcher                      what started the ranks ("rankwise run", "torchrun", ...); "" if there is no launcher
    id                            a text that all ranks of this job share, and that no other job of this host has
    secret                        bytes that only the ranks of this job know, or b"" if the launcher sets none
    master                        host and port of a store where the ranks can meet (MASTER_ADDR, MASTER_PORT), or None
    master_serves                 whether the launcher serves that store, as torchrun does; otherwise rank 0 must
    listener                      of rank 0, if it serves that store: a socket that listens there already, or None
    segment_fd                    descriptor of the shared memory of this host's ranks if they inherited it, else None;
                                  local_rank is this rank's number there
    tuning                        the tuning file that the program names; None: RANKWISE_TUNING decides
    restart                       how many processes were started for this rank before this one: 0, unless it was lost
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    launcher: str = ""
    id: str = ""
    secret: bytes = field(default=b"", repr=False)
    segment_fd: int | None = None
    master: tuple[str, int] | None = None
    master_serves: bool = False
    listener: socket.socket | None = field(default=None, repr=False)
    restart: int = 0
    node: int | None = None
    tuning: str | None = None

    @property
    def one_host(self) -> bool:
        """Whether all ranks are on this host: the launcher says so, or it names no address of another host."""
        if self.local_world_size is None:
            return self.master is None or self.master[0] in ("localhost", "::1") or self.master[0].startswith("127.")
        return self.local_world_size == self.world_size

    @property
    def default_backend(self) -> str:
        """The backend that suits this job, used if neither the program nor RANKWISE_BACKEND names one."""
        if self.world_size == 1 and self.segment_fd is None:
            return "solo"
        return "shm" if self.one_host else "hierarchical"  # which itself finds out whether any host has several ranks

    @property
    def engine(self) -> str:
        """The backend that suits this job between its hosts."""
        return "mpi" if self.launcher.startswith("mpiexec") else "gloo"
