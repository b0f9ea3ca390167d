"""Communicators: how they are made, named and ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rankwise.frontends.mpi4py import specs
from rankwise.frontends.mpi4py.buffers import buffer
from rankwise.frontends.mpi4py.collectives import BufferCollectives
from rankwise.frontends.mpi4py.context import MAX_TAG, Context
from rankwise.frontends.mpi4py.errors import absent, error
from rankwise.frontends.mpi4py.groups import CONGRUENT, IDENT, Group
from rankwise.frontends.mpi4py.handles import Errhandler
from rankwise.frontends.mpi4py.info import Info
from rankwise.frontends.mpi4py.objects import ObjectCollectives
from rankwise.frontends.mpi4py.requests import Pending, Request
from rankwise.frontends.mpi4py.status import UNDEFINED
from rankwise.frontends.mpi4py.topology import CART, Cartesian, Grid, new_grid
from rankwise.frontends.mpi4py.world import WORLD
from rankwise.group.base import integer

COMM_TYPE_SHARED, COMM_TYPE_HW_GUIDED, COMM_TYPE_HW_UNGUIDED, COMM_TYPE_RESOURCE_GUIDED = range(1, 5)
KEYVAL_INVALID = -1
TAG_UB, HOST, IO, WTIME_IS_GLOBAL, UNIVERSE_SIZE, APPNUM, LASTUSEDCODE = range(1, 8)


class Comm(BufferCollectives, ObjectCollectives, root=True):
    """An MPI communicator over a group of rankwise."""

    _null = "ERR_COMM"
    Barrier = ObjectCollectives.barrier  # Ibarrier and Barrier_init are made with the collectives on buffers
    (
        Create_errhandler, Call_errhandler, Create_keyval, Free_keyval, Get_failed, Ack_failed,
        Agree, Iagree, Shrink, Ishrink, Revoke, Is_revoked, Psend_init, Precv_init, Join, Get_remote_size,
        Get_remote_group, Merge, Create_intercomm,
    ) = absent(19)  # fmt: skip

    # ---- what it is ----

    def Get_size(self) -> int:
        return self._live().size

    def Get_rank(self) -> int:
        return self._live().rank

    size = property(Get_size)
    rank = property(Get_rank)

    def Get_group(self) -> Group:
        return Group._of(self._live().members)

    group = property(Get_group)

    def Is_inter(self) -> bool:
        self._live()
        return False

    def Is_intra(self) -> bool:
        return not self.Is_inter()

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Get_topology(self) -> int:
        return UNDEFINED if self._live().topology is None else CART

    topology = property(Get_topology)
    is_topo = property(lambda self: self.Get_topology() != UNDEFINED)

    def Compare(self, comm: Comm) -> int:
        if self._live() is comm._live():
            return IDENT
        comparison = self.Get_group().Compare(comm.Get_group())
        return CONGRUENT if comparison == IDENT else comparison

    def Get_info(self) -> Info:
        return Info.Create(self._live().info)

    def Set_info(self, info: Info | None) -> None:
        self._live().info = dict(info._h or {}) if info is not None else {}

    info = property(Get_info, Set_info)

    def Get_attr(self, keyval: int) -> Any:
        c = self._live()
        known = {TAG_UB: MAX_TAG, WTIME_IS_GLOBAL: 0, UNIVERSE_SIZE: WORLD.size, IO: c.rank}
        return c.attributes.get(keyval, known.get(keyval))

    def Set_attr(self, keyval: int, value: Any) -> None:
        self._live().attributes[keyval] = value

    def Delete_attr(self, keyval: int) -> None:
        self._live().attributes.pop(keyval, None)

    def Get_errhandler(self) -> Errhandler:
        return Errhandler(self._live().errhandler)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        self._live().errhandler = Errhandler(errhandler)

    @classmethod
    def Get_parent(cls) -> Intercomm:
        """The null handle: no process of this job was spawned by another."""
        return Intercomm()

    # ---- making others ----

    def _made(self, group: Any, kind: type[Comm] | None = None, topology: Cartesian | None = None) -> Any:
        """A handle of a new communicator; null for no group."""
        return (kind or Intracomm)._of(None if group is None else Context(group, topology=topology))

    def Dup(self, info: Info | None = None) -> Any:
        return type(self)._of(self._copied(self._live().group.dup(), info))

    def _copied(self, group: Any, info: Info | None) -> Context:
        c = self._live()
        made = Context(group, topology=c.topology)
        made.attributes, made.errhandler = dict(c.attributes), c.errhandler
        made.info = dict(c.info) if info is None else dict(info._h or {})
        return made

    Clone = Dup_with_info = Dup

    def Idup(self, info: Info | None = None) -> tuple[Any, Request]:
        """The copy is null until the request is complete."""
        c, copy = self._live(), type(self)()
        same = type(self)(self)  # the program may free its own handle meanwhile

        def body() -> None:
            copy._h = same._copied(c.group.dup(), info)

        return copy, Request._of(Pending(c.group.pending.own(c.comm.start_call(body))))

    Idup_with_info = Idup

    def Split(self, color: int = 0, key: int = 0) -> Any:
        if integer(color, "color") < 0 and color != UNDEFINED:
            raise error("ERR_ARG", f"color={color}: expected 0 or more, or UNDEFINED")
        return self._made(self._live().group.split(None if color == UNDEFINED else color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Info | None = None) -> Any:
        """Communicators of the ranks of one host for COMM_TYPE_SHARED; null for kinds of hardware that are unknown."""
        shared = split_type == COMM_TYPE_SHARED
        if split_type in (COMM_TYPE_HW_GUIDED, COMM_TYPE_RESOURCE_GUIDED):
            shared = info is not None and info.get("mpi_hw_resource_type") == "mpi_shared_memory"
        host = WORLD.host_of(self._live().group)
        return self.Split(host if shared else UNDEFINED, key)

    def Create(self, group: Group) -> Any:
        """Of the ranks of `group`; every rank of this communicator calls it."""
        c = self._live()
        members = [c.ranks.index(rank) for rank in group._live()]
        return self._made(c.group.subgroup(members) if c.rank in members else c.group.split(None))

    def Create_group(self, group: Group, tag: int = 0) -> Any:
        """Of the ranks of `group`; only they call it."""
        return self._made(WORLD.create_group(group._live(), tag))

    @classmethod
    def Create_from_group(cls, group: Group, stringtag: str = "", info: Any = None, errhandler: Any = None) -> Any:
        return COMM_NULL.Create_group(group, sum(stringtag.encode()))

    def Free(self) -> None:
        """Without this handle, the communicator is closed as soon as its last request in progress is complete."""
        self._freed()

    def Disconnect(self) -> None:
        self._freed().group.close()

    # ---- buffered sends need no buffer ----

    def Attach_buffer(self, buf: Any) -> None:
        self._live().buffer = buf

    def Detach_buffer(self) -> Any:
        c = self._live()
        detached, c.buffer = c.buffer, None
        return detached if detached is None or detached is specs.BUFFER_AUTOMATIC else buffer(detached)

    def Flush_buffer(self) -> None:
        self._live()

    def Iflush_buffer(self) -> Request:
        self._live()
        return Request._of(Pending())

    # ---- the end ----

    def Abort(self, errorcode: int = 0) -> NoReturn:
        """End the job: this process exits with errorcode & 255, or 1 if that is 0; the others' operations fail."""
        c = self._live()
        print(f"rank {WORLD.rank} called MPI Abort({errorcode})", file=sys.stderr)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if c.size > 1:
            c.group.comm.abort(f"MPI Abort({errorcode})")
        os._exit(errorcode & 255 or 1)


class Intracomm(Comm):
    """A communicator of one group: every communicator here is one."""

    (
        Spawn, Spawn_multiple, Accept, Connect, Create_graph, Create_dist_graph, Create_dist_graph_adjacent,
        Create_from_groups, Graph_map, Neighbor_allgather, Neighbor_allgatherv, Neighbor_alltoall,
        Neighbor_alltoallv, Neighbor_alltoallw, Ineighbor_allgather, Ineighbor_allgatherv, Ineighbor_alltoall,
        Ineighbor_alltoallv, Ineighbor_alltoallw, neighbor_allgather, neighbor_alltoall,
    ) = absent(21)  # fmt: skip

    def Create_cart(self, dims: Sequence[int], periods: Any = None, reorder: bool = False) -> Any:
        grid = new_grid(dims, periods, self.size, "ERR_ARG")
        return self._made(self._live().group.split(0 if self.rank < grid.size else None), Cartcomm, grid)

    def Cart_map(self, dims: Sequence[int], periods: Any = None) -> int:
        grid = new_grid(dims, periods, self.size, "ERR_DIMS")
        return self.rank if self.rank < grid.size else UNDEFINED


class Cartcomm(Grid, Intracomm):
    """A communicator whose ranks form a grid."""


class Intercomm(Comm):
    """A communicator between two groups, of which there is only the null handle."""


COMM_NULL: Any = Comm()._named("COMM_NULL")
