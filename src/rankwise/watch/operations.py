"""The operations that are recorded, by the library that a program calls.

An operation is a row of a table: its name, as which operation the trace shows it ("" for none), and where its
arguments are, counted after the communicator. All ranks number the operations in the order of these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

Place = tuple[int, str]  # of an argument: its position and its name


@dataclass(frozen=True)
class Operation:
    """One operation.

    message: not a collective, and so never compared. buffer, other: what is measured, the second in place of
    MPI.IN_PLACE.
    """

    name: str
    traced: str = ""
    message: bool = False
    buffer: Place | None = None
    other: Place | None = None
    root: Place | None = None
    reduction: Place | None = None
    tag: Place | None = None

    @property
    def rooted(self) -> bool:
        return self.root is not None and not self.message


REDUCTIONS = (
    *("SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"),  # as ReduceOp
    *("LAND", "LOR", "LXOR", "MINLOC", "MAXLOC", "REPLACE", "NO_OP", "a user's"),
)

_SEND, _RECV = (0, "sendbuf"), (1, "recvbuf")

# Name, traced, buffer, other, root, reduction. Only what is the same on all ranks is measured.
_BUFFERS: tuple[tuple[str, str, Place | None, Place | None, Place | None, Place | None], ...] = (
    ("Barrier", "barrier", None, None, None, None),
    ("Bcast", "broadcast", (0, "buf"), None, (1, "root"), None),
    ("Gather", "gather", _SEND, None, (2, "root"), None),
    ("Gatherv", "gather_v", None, None, (2, "root"), None),
    ("Scatter", "scatter", _RECV, None, (2, "root"), None),
    ("Scatterv", "scatter_v", None, None, (2, "root"), None),
    ("Allgather", "all_gather", _SEND, None, None, None),
    ("Allgatherv", "all_gather_v", None, None, None, None),
    ("Alltoall", "all_to_all", _SEND, None, None, None),
    ("Alltoallv", "all_to_all_v", None, None, None, None),
    ("Alltoallw", "all_to_all_v", None, None, None, None),
    ("Reduce", "reduce", _SEND, _RECV, (3, "root"), (2, "op")),
    ("Allreduce", "all_reduce", _SEND, _RECV, None, (2, "op")),
    ("Reduce_scatter_block", "reduce_scatter", _SEND, None, None, (2, "op")),
    ("Reduce_scatter", "reduce_scatter_v", None, None, None, (3, "op")),
    ("Scan", "scan", _SEND, _RECV, None, (2, "op")),
    ("Exscan", "exscan", _SEND, _RECV, None, (2, "op")),
    ("Neighbor_allgather", "all_gather", None, None, None, None),
    ("Neighbor_allgatherv", "all_gather_v", None, None, None, None),
    ("Neighbor_alltoall", "all_to_all", None, None, None, None),
    ("Neighbor_alltoallv", "all_to_all_v", None, None, None, None),
    ("Neighbor_alltoallw", "all_to_all_v", None, None, None, None),
)


def _collectives() -> Iterable[Operation]:
    for name, traced, buffer, other, root, reduction in _BUFFERS:
        yield Operation(name, traced, False, buffer, other, root, reduction)
        yield Operation(f"I{name.lower()}", traced, False, buffer, other, root, reduction)
        yield Operation(f"{name}_init", traced, False, buffer, other, root, reduction)
    objects: tuple[tuple[str, str, Place | None, Place | None], ...] = (
        ("bcast", "broadcast", (1, "root"), None),
        ("gather", "gather", (1, "root"), None),
        ("scatter", "scatter", (1, "root"), None),
        ("allgather", "all_gather", None, None),
        ("alltoall", "all_to_all", None, None),
        ("reduce", "reduce", (2, "root"), (1, "op")),
        ("allreduce", "all_reduce", None, (1, "op")),
        ("scan", "scan", None, (1, "op")),
        ("exscan", "exscan", None, (1, "op")),
        ("neighbor_allgather", "all_gather", None, None),
        ("neighbor_alltoall", "all_to_all", None, None),
    )
    for name, traced, root, reduction in objects:
        yield Operation(name, traced, root=root, reduction=reduction)
    for name in ("Free", "Disconnect", "Agree", "Iagree", "Create_intercomm", "Spawn", "Spawn_multiple"):
        yield Operation(name)
    for name in ("Accept", "Connect", "Finalize"):
        yield Operation(name)


MAKES_COMM = (
    *("Clone", "Dup", "Dup_with_info", "Idup", "Idup_with_info", "Create", "Split", "Split_type", "Shrink"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub"),
)
"""Calls of all ranks of a communicator, which make another one."""


def _messages() -> Iterable[Operation]:
    to: tuple[Place, Place] = (1, "dest"), (2, "tag")
    objects, buffers = ("send", "ssend", "bsend"), ("Send", "Ssend", "Bsend", "Rsend")
    pending = ("isend", "issend", "ibsend", "Isend", "Issend", "Ibsend", "Irsend")
    for name in (*objects, *buffers, *pending):
        yield Operation(name, "send", True, root=to[0], tag=to[1])
    for name in ("recv", "Recv", "irecv", "Irecv"):
        yield Operation(name, "recv", True, root=(1, "source"), tag=(2, "tag"))
    for name in ("probe", "Probe", "mprobe", "Mprobe"):
        yield Operation(name, "recv", True, root=(0, "source"), tag=(1, "tag"))
    for name in ("sendrecv", "Sendrecv"):
        yield Operation(name, "send", True, root=(1, "dest"), tag=(2, "sendtag"))
    yield Operation("Sendrecv_replace", "send", True, root=(1, "dest"), tag=(2, "sendtag"))
    yield Operation("Create_group", "split", True)


WAITS = ("Wait", "Waitall", "Waitany", "Waitsome", "wait", "waitall", "waitany", "waitsome")
"""Of a request; they are shown in a roll call, and the trace shows them as "sync"."""

MPI: tuple[Operation, ...] = (
    *_collectives(),
    *(Operation(name, "split") for name in MAKES_COMM),
    *_messages(),
    *(Operation(name, "sync", True) for name in WAITS),
)


def _torch() -> Iterable[Operation]:
    """torch.distributed's functions; rankwise.watch.torch reads their arguments."""
    root: Place = (0, "src")
    for name, traced in (
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_to_all", "all_to_all_v"),
        ("all_to_all_single", "all_to_all"),
        ("all_gather_object", "all_gather"),
        ("barrier", "barrier"),
        ("monitored_barrier", "barrier"),
        ("new_group", "split"),
        ("destroy_process_group", ""),
    ):
        yield Operation(name, traced)
    for name in ("broadcast", "reduce", "gather", "scatter"):
        yield Operation(name, name, root=root)
    for name in ("broadcast_object_list", "gather_object", "scatter_object_list"):
        yield Operation(name, name.split("_")[0], root=root)
    for name, traced in (("send", "send"), ("isend", "send"), ("recv", "recv"), ("irecv", "recv")):
        yield Operation(name, traced, True)
    yield Operation("wait", "sync", True)
    yield Operation("init_process_group", "", True)


TORCH: tuple[Operation, ...] = tuple(_torch())

ALL: tuple[Operation, ...] = (*MPI, *TORCH)
MPI_NUMBERS = {operation.name: number for number, operation in enumerate(MPI)}
TORCH_NUMBERS = {operation.name: len(MPI) + number for number, operation in enumerate(TORCH)}
EQUAL = {"barrier": "Barrier"}
"""Methods that are another one under a second name."""
