"""Which process this is, in which job: what a launcher says and a backend needs to meet the other ranks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Job:
    """One rank's place in its job.

    rank, world_size              as everywhere: 0 <= rank < world_size
    local_rank, local_world_size  the same among the ranks of this host, or None where the launcher does not say
    launcher                      who started the ranks ("rankwise run", "torchrun", ...); "" for a process on its own
    id                            a text that is the same on all ranks of this job and on no other job of this host
    secret                        bytes that only this job's ranks know, or b"" where the launcher gives none
    master                        host and port of a store where the ranks can meet (MASTER_ADDR, MASTER_PORT), or None
    master_serves                 True where the launcher serves that store (torchrun does), False where rank 0 is to
    segment_fd                    descriptor of the job's shared memory where the ranks inherited it, else None
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

    @property
    def one_host(self) -> bool:
        """True where the launcher says that all ranks are on this host."""
        return self.local_world_size == self.world_size
