"""The operations that are recorded, by the library that a program calls.

An operation is a row of a table: its name, as which operation the trace shows it, and where its arguments are, counted
after the communicator. All ranks number the operations in the order of these tables.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Place = tuple[int, str]  # of an argument: its position and its name


@dataclass(frozen=True)
class Operation:
    """One operation.

    message: not a collective, and so never compared. buffer, other: what is measured, the second in place of
    MPI.IN_PLACE.
    """

    name: str
    traced: str
    message: bool = False
    buffer: Place | None = None
    other: Place | None = None
    root: Place | None = None
    reduction: Place | None = None
    tag: Place | None = None

    @property
    def places(self) -> list[Place | None]:
        """In the order that _watch.function takes."""
        return [self.buffer, self.other, self.root, self.reduction, self.tag]


REDUCTIONS = (
    *("SUM", "PROD", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"),  # as ReduceOp
    *("LAND", "LOR", "LXOR", "MINLOC", "MAXLOC", "REPLACE", "NO_OP", "a user's"),
)

_SEND, _RECV = (0, "sendbuf"), (1, "recvbuf")

# Of collectives on buffers. Only what is the same on all ranks is measured.
_BUFFERS = (
    Operation("Barrier", "barrier"),
    Operation("Bcast", "broadcast", buffer=(0, "buf"), root=(1, "root")),
    Operation("Gather", "gather", buffer=_SEND, root=(2, "root")),
    Operation("Gatherv", "gather_v", root=(2, "root")),
    Operation("Scatter", "scatter", buffer=_RECV, root=(2, "root")),
    Operation("Scatterv", "scatter_v", root=(2, "root")),
    Operation("Allgather", "all_gather", buffer=_SEND),
    Operation("Allgatherv", "all_gather_v"),
    Operation("Alltoall", "all_to_all", buffer=_SEND),
    Operation("Alltoallv", "all_to_all_v"),
    Operation("Alltoallw", "all_to_all_v"),
    Operation("Reduce", "reduce", buffer=_SEND, other=_RECV, root=(3, "root"), reduction=(2, "op")),
    Operation("Allreduce", "all_reduce", buffer=_SEND, other=_RECV, reduction=(2, "op")),
    Operation("Reduce_scatter_block", "reduce_scatter", buffer=_SEND, reduction=(2, "op")),
    Operation("Reduce_scatter", "reduce_scatter_v", reduction=(3, "op")),
    Operation("Scan", "scan", buffer=_SEND, other=_RECV, reduction=(2, "op")),
    Operation("Exscan", "exscan", buffer=_SEND, other=_RECV, reduction=(2, "op")),
    Operation("Neighbor_allgather", "all_gather"),
    Operation("Neighbor_allgatherv", "all_gather_v"),
    Operation("Neighbor_alltoall", "all_to_all"),
    Operation("Neighbor_alltoallv", "all_to_all_v"),
    Operation("Neighbor_alltoallw", "all_to_all_v"),
)

_OBJECTS = (
    Operation("bcast", "broadcast", root=(1, "root")),
    Operation("gather", "gather", root=(1, "root")),
    Operation("scatter", "scatter", root=(1, "root")),
    Operation("allgather", "all_gather"),
    Operation("alltoall", "all_to_all"),
    Operation("reduce", "reduce", root=(2, "root"), reduction=(1, "op")),
    Operation("allreduce", "all_reduce", reduction=(1, "op")),
    Operation("scan", "scan", reduction=(1, "op")),
    Operation("exscan", "exscan", reduction=(1, "op")),
    Operation("neighbor_allgather", "all_gather"),
    Operation("neighbor_alltoall", "all_to_all"),
)

MAKES_COMM = (
    *("Clone", "Dup", "Dup_with_info", "Idup", "Idup_with_info", "Create", "Split", "Split_type", "Shrink"),
    *("Create_cart", "Create_graph", "Create_dist_graph", "Create_dist_graph_adjacent", "Sub"),
)
"""Calls of all ranks of a communicator, which make another one."""

_INTERCOMMS = ("Create_intercomm", "Spawn", "Spawn_multiple", "Accept", "Connect")

_SENDS = (
    *("send", "ssend", "bsend", "Send", "Ssend", "Bsend", "Rsend", "sendrecv", "Sendrecv", "Sendrecv_replace"),
    *("isend", "issend", "ibsend", "Isend", "Issend", "Ibsend", "Irsend"),
)

WAITS = ("Wait", "Waitall", "Waitany", "Waitsome", "wait", "waitall", "waitany", "waitsome")
"""Of a request; they are shown in a roll call, and the trace shows them as "sync"."""

MPI: tuple[Operation, ...] = (
    *(replace(row, name=name) for row in _BUFFERS for name in (row.name, f"I{row.name.lower()}", f"{row.name}_init")),
    *_OBJECTS,
    *(Operation(name, "close") for name in ("Free", "Disconnect", "Finalize")),
    *(Operation(name, "agree") for name in ("Agree", "Iagree")),
    *(Operation(name, "split") for name in (*MAKES_COMM, *_INTERCOMMS)),
    *(
        Operation(name, "send", True, root=(1, "dest"), tag=(2, "sendtag" if "recv" in name else "tag"))
        for name in _SENDS
    ),
    *(Operation(name, "recv", True, root=(1, "source"), tag=(2, "tag")) for name in ("recv", "Recv", "irecv", "Irecv")),
    *(
        Operation(name, "recv", True, root=(0, "source"), tag=(1, "tag"))
        for name in ("probe", "Probe", "mprobe", "Mprobe")
    ),
    Operation("Create_group", "split", True),
    *(Operation(name, "sync", True) for name in WAITS),
)

# torch.distributed's functions; torch.py reads their arguments.
_TORCH_COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all": "all_to_all_v",
    "all_to_all_single": "all_to_all",
    "all_gather_object": "all_gather",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
    "new_group": "split",
    "destroy_process_group": "close",
}
_TORCH_ROOTED = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "broadcast_object_list": "broadcast",
    "gather_object": "gather",
    "scatter_object_list": "scatter",
}
_TORCH_MESSAGES = (
    *(Operation(name, "send", True, root=(1, "dest")) for name in ("send", "isend")),
    *(Operation(name, "recv", True, root=(1, "source")) for name in ("recv", "irecv")),
    Operation("wait", "sync", True),
    Operation("init_process_group", "init", True),
)

TORCH: tuple[Operation, ...] = (
    *(Operation(name, traced) for name, traced in _TORCH_COLLECTIVES.items()),
    *(Operation(name, traced, root=(0, "root")) for name, traced in _TORCH_ROOTED.items()),
    *_TORCH_MESSAGES,
)

ALL: tuple[Operation, ...] = (*MPI, *TORCH)
MPI_NUMBERS = {operation.name: number for number, operation in enumerate(MPI)}
TORCH_NUMBERS = {operation.name: len(MPI) + number for number, operation in enumerate(TORCH)}
EQUAL = {"barrier": "Barrier"}
"""Methods that are another one under a second name."""
