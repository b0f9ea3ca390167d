"""The program of each rank process of `rankwise bench --objects`.

    python objects_rank.py LIBRARY SOCKET

It is rank.py, beside it, with other points: operations on objects, and exchanges of many messages. The name of a point
is its operation and its content, such as "gather_object 10K" or "posted 1000". Round trips are made between the ranks
2i and 2i + 1, all pairs at once; a rank without a partner does nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rankwise.tools.bench import rank
else:  # by its path, because environments without rankwise run this file too
    spec = importlib.util.spec_from_file_location("rank", Path(__file__).with_name("rank.py"))
    rank = sys.modules["rank"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rank)

ROOT = rank.ROOT
GO = 0  # the tag of a message that only synchronises two ranks; the counted ones have 1, 2, 3, ...

COLLECTIVES = ("broadcast_object", "gather_object", "all_gather_object", "scatter_object")

Call = Callable[[], Any]


# ---- the libraries ----


@dataclass(frozen=True)
class Objects:
    """A library's functions for Python objects and for messages.

    recv_array: receives an array of float64 of unknown length in new memory. collectives: COLLECTIVES, by name.
    """

    any_source: int
    send: Callable[[Any, int], object]
    recv: Callable[[int], Any]
    send_array: Callable[[np.ndarray, int], object]
    recv_array: Callable[[int], np.ndarray]
    collectives: dict[str, Callable[..., Any]]
    isend: Callable[[np.ndarray, int, int], Any]
    irecv: Callable[[np.ndarray, int, int], Any]
    wait_all: Callable[[list[Any]], object]


def objects_of(library: rank.Library) -> Objects:
    return of_rankwise(library.group) if isinstance(library, rank.Arrays) else of_mpi(library)


def of_rankwise(group: Any) -> Objects:
    import rankwise

    return Objects(
        any_source=rankwise.ANY,
        send=group.send_object,
        recv=group.recv_object,
        send_array=group.send,
        recv_array=lambda source: group.recv_any(source).data,
        collectives={name: getattr(group, name) for name in COLLECTIVES},
        isend=group.isend,
        irecv=group.irecv,
        wait_all=rankwise.wait_all,
    )


def of_mpi(library: Any) -> Objects:
    mpi, comm = library.MPI, library.comm

    def recv_array(source: int) -> np.ndarray:
        status = mpi.Status()
        comm.Probe(source, mpi.ANY_TAG, status)
        x = np.empty(status.Get_count(mpi.DOUBLE))
        comm.Recv(x, status.source, status.tag)
        return x

    return Objects(
        any_source=mpi.ANY_SOURCE,
        send=comm.send,
        recv=partial(comm.recv, None),
        send_array=comm.Send,
        recv_array=recv_array,
        collectives=dict(zip(COLLECTIVES, (comm.bcast, comm.gather, comm.allgather, comm.scatter), strict=True)),
        isend=comm.Isend,
        irecv=comm.Irecv,
        wait_all=mpi.Request.Waitall,
    )


# ---- the objects ----

SIZES = {"8": 8, "10K": 10 << 10, "1M": 1 << 20}  # bytes of an array


def content(name: str, owner: int) -> Any:
    """What rank `owner` passes; every rank's is different."""
    if name == "dict":
        return {"rank": owner, "name": "worker", "loss": 0.25, "done": False}
    if name == "10K":
        rows = [{"id": i, "name": f"row {i}", "at": (0.5 * i, owner), "tags": ["a", None]} for i in range(234)]
        return {"rank": owner, "rows": rows}
    return {"rank": owner, "step": 7, "weights": array(name, owner)}


def array(name: str, owner: int) -> np.ndarray:
    return np.arange(SIZES[name] // 8, dtype=np.float64) + owner


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


# ---- the points ----


@dataclass
class ObjectPoint(rank.Point):
    """One rank's part of an operation.

    call: makes it once, and returns what this rank receives. right: what that must be. barrier: begins each batch.
    around: the context in which calls are made.
    """

    call: Call
    right: Any
    barrier: Call
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def verify(self) -> None:
        """Call it once. Raises RuntimeError if anything else is received than expected."""
        with self.around():
            received = self.call()
        if not same(received, self.right):
            raise RuntimeError(f"received {_short(received)}, expected {_short(self.right)}")

    def seconds(self, contender: rank.Library, iterations: int, batches: int, warm: int, fresh: bool) -> list[float]:
        with self.around():
            return rank.time_batches(self.call, self.barrier, iterations, batches + warm)[warm:]


def _short(value: object) -> str:
    return " ".join(str(value).split())[:100]


def point(name: str, library: rank.Library) -> ObjectPoint:
    """This rank's part of the point with this name."""
    operation, _, what = name.partition(" ")
    if operation == "barrier":
        return ObjectPoint(library.barrier, None, library.barrier)
    if operation.endswith("_object"):
        return collective(operation, what, library)
    if operation in ("object_round_trip", "object_from_any", "array_round_trip"):
        return round_trip(operation, what, library)
    return Messages(library, int(what)).point(operation)


def collective(operation: str, what: str, library: rank.Library) -> ObjectPoint:
    at_root = library.rank == ROOT
    objs = [content(what, owner) for owner in range(library.world_size)]
    mine = objs[library.rank]
    cases: dict[str, tuple[tuple[Any, ...], Any]] = {  # what this rank passes, and what it must receive
        "broadcast_object": ((mine if at_root else None, ROOT), objs[ROOT]),
        "gather_object": ((mine, ROOT), objs if at_root else None),
        "all_gather_object": ((mine,), objs),
        "scatter_object": ((objs if at_root else None, ROOT), mine),
    }
    given, right = cases[operation]
    return ObjectPoint(partial(objects_of(library).collectives[operation], *given), right, library.barrier)


def round_trip(operation: str, what: str, library: rank.Library) -> ObjectPoint:
    objects, me, partner = objects_of(library), library.rank, library.rank ^ 1
    if partner >= library.world_size:
        return ObjectPoint(lambda: None, None, library.barrier)
    make = array if operation == "array_round_trip" else content
    mine, right = make(what, me), make(what, partner)
    if make is array:
        send, recv = partial(objects.send_array, mine, partner), partial(objects.recv_array, partner)
    else:
        source = partner if operation == "object_round_trip" else objects.any_source
        send, recv = partial(objects.send, mine, partner), partial(objects.recv, source)
    return ObjectPoint(there_and_back(send, recv, me < partner), right, library.barrier)


def there_and_back(send: Call, recv: Call, first: bool) -> Call:
    """The call of one of two ranks; it returns what was received."""

    def begin() -> Any:
        send()
        return recv()

    def answer() -> Any:
        received = recv()
        send()
        return received

    return begin if first else answer


class Messages:
    """`number` messages of 8 bytes with different tags from rank 1 to rank 0; there are no other ranks."""

    def __init__(self, library: rank.Library, number: int) -> None:
        self.library, self.objects = library, objects_of(library)
        self.partner = 1 - library.rank
        self.receives = library.rank == 0
        self.outbox, self.inbox = np.arange(1.0, number + 1), np.zeros(number)
        self.sent = list(enumerate(np.split(self.outbox, number), 1))  # (tag, message)
        self.received = list(enumerate(np.split(self.inbox, number), 1))
        self.token, self.other_token = np.full(1, float(library.rank)), np.full(1, float(self.partner))

    def point(self, operation: str) -> ObjectPoint:
        barrier, right = self.library.barrier, self.outbox if self.receives else None
        if operation == "beside_pending":
            return ObjectPoint(self.ping_pong(), self.other_token.copy(), barrier, self.pending)
        if operation == "unexpected":
            return ObjectPoint(self.receive_late if self.receives else self.send_first, right, barrier)
        source = self.objects.any_source if operation == "posted_any" else self.partner
        order = self.sent[::-1] if operation == "posted_reversed" else self.sent
        call = partial(self.receive, source) if self.receives else partial(self.send_late, order)
        return ObjectPoint(call, right, barrier)

    def receive(self, source: int) -> np.ndarray:
        """Post all receives, and only then let the partner send."""
        works = self.post(source)
        self.objects.wait_all([self.go()])
        self.objects.wait_all(works)
        return self.inbox

    def send_late(self, order: list[tuple[int, np.ndarray]]) -> None:
        self.objects.wait_all([self.ready()])
        self.objects.wait_all(self.send(order))

    def receive_late(self) -> np.ndarray:
        """Receive when all messages have arrived: the last one says so."""
        self.objects.wait_all([self.ready()])
        self.objects.wait_all(self.post(self.partner))
        return self.inbox

    def send_first(self) -> None:
        self.objects.wait_all([*self.send(self.sent), self.go()])

    def ping_pong(self) -> Call:
        out = np.zeros(1)
        send, recv = self.library.send(self.token, self.partner), self.library.recv(out, self.partner)

        def received() -> np.ndarray:
            recv()
            return out

        return there_and_back(send, received, self.receives)

    @contextmanager
    def pending(self) -> Iterator[None]:
        """Receives that both ranks have posted, and whose messages are sent at the end."""
        works = self.post(self.partner)
        yield
        self.objects.wait_all([*self.send(self.sent), *works])
        if not same(self.inbox, self.outbox):
            raise RuntimeError("a pending receive has the wrong message")

    def post(self, source: int) -> list[Any]:
        return [self.objects.irecv(x, source, tag) for tag, x in self.received]

    def send(self, order: list[tuple[int, np.ndarray]]) -> list[Any]:
        return [self.objects.isend(x, self.partner, tag) for tag, x in order]

    def go(self) -> Any:
        return self.objects.isend(self.token, self.partner, GO)

    def ready(self) -> Any:
        return self.objects.irecv(self.other_token, self.partner, GO)


class ObjectServer(rank.RankServer):
    def arrays(self, level: str, operation: Sequence[Any], count: int, dtype: str, op: str) -> rank.Point:
        """The point of a request, which is checked once, when it is made."""
        name = rank.Row(*operation).name
        if name not in self.points:
            self.points.clear()  # freed before the next is made
            made = point(name, self.contenders[level])
            made.verify()
            self.points[name] = made
        return self.points[name]


def main(name: str, path: str) -> None:
    rank.main(name, path, ObjectServer)


if __name__ == "__main__":
    main(*sys.argv[1:])
