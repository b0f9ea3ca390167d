"""The modes of a session: which ranks its collectives reach, and how distributed_init chooses them."""

from __future__ import annotations

import os
import socket
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rankwise as rw
from rankwise.contract.job import Job
from rankwise.contract.ranks import count_of_ranks
from rankwise.contract.work import COMPLETE, OuterWork
from rankwise.frontends.tcl.handles import Tensor
from rankwise.frontends.tcl.parameters import invalid
from rankwise.frontends.tcl.value_types import BACKENDS
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings

PORT = 29500
"""The default port of distributed_init, which is also torch's."""


class Alone:
    """A stand-in for a Group that consists of this process only, and accepts any rank number.

    A message to any rank arrives at this process, as a message from that rank; a receive for which there is
    no message gives zeros.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)

    def barrier(self) -> None:
        pass

    def _in_place(self, x: Tensor, *options: object) -> Tensor:
        return x

    broadcast = all_reduce = reduce = _in_place

    def _copy(self, x: Tensor, *options: object) -> Tensor:
        return np.array(x)

    scatter = reduce_scatter = all_to_all = _copy

    def _gathered(self, x: Tensor, *options: object) -> Tensor:
        return np.array(x[None])

    gather = all_gather = _gathered

    def isend(self, x: Tensor, dst: int, tag: int = 0) -> rw.Work[None]:
        self._messages[dst, tag].append(np.array(x))
        return COMPLETE

    def irecv(self, x: tuple[int, ...], src: int, tag: int = 0, *, dtype: Any = None) -> rw.Work[Tensor]:
        queue, wanted = self._messages[src, tag], np.dtype(dtype)

        def wait(timeout: float | None) -> Tensor:
            """The next message of the queue, or zeros if it is empty."""
            if not queue:
                return np.zeros(x, wanted)
            sent = queue[0]
            if sent.dtype != wanted or sent.size != np.prod(x, dtype=int):
                message = f"{sent.dtype.name} {{{' '.join(map(str, sent.shape))}}}"
                raise ValueError(f"The message is {message}, not {wanted.name} {{{' '.join(map(str, x))}}}")
            return np.array(queue.popleft().reshape(x))

        return OuterWork(wait)


Ranks = rw.Group | Alone


@dataclass
class World:
    """The state that distributed_init gave a session.

    barrier: the text that distributed_barrier returns. ranks: the group of all ranks. groups: for each
    name passed to distributed_new_group its ranks and its group, which is None if this rank is not in it.
    """

    rank: int
    world_size: int
    barrier: str
    ranks: Ranks = field(default_factory=Alone)
    groups: dict[str, tuple[tuple[int, ...], rw.Group | None]] = field(default_factory=dict)
    initialized: bool = True

    def group(self, name: str) -> Ranks:
        """The group called `name`; "" is the group of all ranks. An Alone accepts any name."""
        if not name or isinstance(self.ranks, Alone):
            return self.ranks
        if name not in self.groups:
            made = ", ".join(f'"{other}"' for other in self.groups) or "none"
            raise invalid("group", name, f"Groups made by distributed_new_group: {made}.")
        ranks, group = self.groups[name]
        if group is None:
            raise invalid("group", name, f"Its ranks are {' '.join(map(str, ranks))}, and this is rank {self.rank}.")
        return group

    def new_group(self, name: str, ranks: tuple[int, ...]) -> None:
        if name in self.groups:
            raise invalid("name", name, "A group of this name exists.")
        given = " ".join(map(str, ranks))
        if not ranks or len(set(ranks)) < len(ranks):
            raise invalid("ranks", given, "Must be at least one rank, and each once.")
        most = self.world_size - 1 if self.initialized else max(ranks)
        if not 0 <= min(ranks) <= max(ranks) <= most:
            raise invalid("ranks", given, f"Must be ranks from 0 to {most}." if self.initialized else "Must be ranks.")
        alone = isinstance(self.ranks, Alone)
        self.groups[name] = (ranks, None if alone else self.ranks.subgroup(ranks, name))  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the groups made here, but not the group of all ranks, which a process can join only once."""
        for _, group in self.groups.values():
            if group is not None:
                group.close()
        self.groups.clear()


def not_initialized() -> World:
    """The world of a new session: this process alone, although rank and world size are the launcher's."""
    job = find_job(os.environ, Settings.read())
    return World(job.rank, job.world_size, "Distributed not initialized", initialized=False)


def initialize(rank: int, world_size: int, address: str, port: int, backend: str) -> tuple[World, str]:
    """The world that distributed_init requests, and the text that it returns."""
    settings = Settings.read()
    job = find_job(os.environ, settings)
    asked = settings.backend or backend
    if world_size == 1:
        world = World(0, 1, "Barrier synchronized (single GPU)")
        others = f" (Note: this process alone, one of {job.world_size} of {job.launcher})" if job.world_size > 1 else ""
        return world, _answer("single GPU", world, backend or "gloo") + others
    if settings.tcl_simulate or not (job.launcher or address):
        world = World(rank, world_size, "Barrier synchronized (simulated multi-GPU)")
        name = backend or "gloo"
        real = f"rankwise run -n {world_size} starts real ones"
        note = f" (Note: this process stands for all ranks of backend={name}; {real})"
        return world, _answer("emulated multi-GPU", world, f"emulated_{name}") + note
    if backend not in ("", *BACKENDS):
        raise invalid("backend", backend, f"Must be one of {', '.join(BACKENDS)}.")
    if job.launcher:
        group = _of_launcher(job, rank, world_size, asked)
    else:
        group = _at_address(address, port, rank, world_size, asked)
    world = World(group.rank, group.world_size, f"Barrier synchronized ({group.world_size} processes)", group)
    note = f" (Note: {asked} is not available here, {group.backend} is)" if asked not in ("", group.backend) else ""
    return world, _answer(f"{world_size} processes", world, group.backend) + note


def _answer(mode: str, world: World, backend: str) -> str:
    where = f"rank={world.rank}, world_size={world.world_size}, backend={backend}"
    return f"Distributed training initialized ({mode}): {where}"


def _of_launcher(job: Job, rank: int, world_size: int, backend: str) -> rw.Group:
    if world_size != job.world_size:
        ranks = count_of_ranks(job.world_size)
        raise invalid("worldSize", world_size, f"{job.launcher} started {ranks}.")
    if rank not in (0, job.rank):  # scripts say 0 on every rank
        raise invalid("rank", rank, f"{job.launcher} made this process rank {job.rank}.")
    return _opened(backend)


def _at_address(address: str, port: int, rank: int, world_size: int, backend: str) -> rw.Group:
    try:
        socket.getaddrinfo(address, port)
    except OSError as error:
        raise invalid("masterAddr", address, f"No such host: {error.strerror}.") from None
    with _environment(RANK=rank, WORLD_SIZE=world_size, MASTER_ADDR=address, MASTER_PORT=port):
        group = _opened(backend)
        if (group.rank, group.world_size) != (rank, world_size):  # it met others before, as another rank or elsewhere
            group.close()
            group = _opened(backend)
        return group


@contextmanager
def _environment(**variables: object) -> Iterator[None]:
    """Set variables as torchrun does, while rankwise.init reads them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: str(value) for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _opened(backend: str) -> rw.Group:
    """The group of all ranks, over `backend` if this host has it and it moves host memory, else over the default."""
    if backend in ("", "nccl"):
        return rw.init()
    try:
        return rw.init(backend)
    except ImportError:
        return rw.init()
