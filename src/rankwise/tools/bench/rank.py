"""What the benchmark measures, and the program of each of its ranks, for every library.

    python rank.py LIBRARY SOCKET

It is run by its path, also in environments without rankwise, so it imports only the standard library and NumPy; the
class of a library imports that library. It connects to the benchmark's socket, reports its rank, and answers each
request. In between it sleeps in a read, so that it disturbs no other library's measurement.

A point is a case at one size. A batch is a number of calls in a row, timed together after a barrier.
"""

from __future__ import annotations

import gc
import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from multiprocessing.connection import Client
from time import perf_counter
from typing import Any, cast

import numpy as np

ROOT = 0  # the rank that broadcast, reduce, gather and scatter start from or end at
PERIOD = 1021  # elements after which the test data repeats; a prime, so that no misplaced block looks correct
MESSAGES = 1000  # of 8 bytes, each with a tag of its own: what `posted` and `unexpected` exchange
OBJECTS = ("dict", "10K", "1M")
"""A small dict; 10 KiB of nested lists, dicts, strings and numbers; a dict with an array of 1 MiB."""

Call = Callable[[], Any]
Build = Callable[[Any, "Point"], Any]
"""From a library and a point, what a rank calls again and again."""


# ---- the cases ----


@dataclass(frozen=True)
class Case:
    """What is measured: a row of CASES.

    kind: "collective", "vector", "message" or "object". rankwise, mpi, gloo: how each library is called; None: not.
    result: where this rank's result is after the call: in "x", the array that it passes, in "out", or "returned".
    rooted: whether only ROOT "reads" or "writes". divides: x is divided among the ranks. gathers: the result has a
    block from each rank. at: what it is measured with; empty for arrays of all sizes. per_call: how many of what is
    reported, such as messages, a call makes.
    """

    name: str
    kind: str
    rankwise: Build
    mpi: Build | None
    gloo: Build | None = None
    result: str = "out"
    rooted: str = ""
    divides: bool = False
    gathers: bool = False
    reduces: bool = False
    at: tuple[str, ...] = ()
    per_call: int = 1

    def count(self, size: int, itemsize: int, n: int) -> int:
        """How many elements hold at least `size` bytes: at least one, or one for each rank if the array is divided."""
        parts = n if self.divides else 1
        return max(1, math.ceil(size / (itemsize * parts))) * parts

    def total(self, size: int, n: int) -> int:
        """The bytes of a rank's larger array, if it passes `size` bytes."""
        return size * n if self.gathers and not self.divides else size

    def bus_bandwidth(self, size: int, n: int, seconds: float) -> float:
        """The load of one link of a ring, comparable between cases and numbers of ranks, in GB/s (10^9 bytes)."""
        factor = 1.0
        if self.divides or self.gathers:
            factor = (n - 1) / n
        elif self.reduces and not self.rooted:
            factor = 2 * (n - 1) / n
        return self.total(size, n) / seconds / 1e9 * factor


def posted(lib: Any, p: Point) -> Any:
    """Of a pair of ranks, one posts all receives, and only then lets the other send."""

    def receive() -> Any:
        works = [lib.irecv(out, lib.partner, tag) for tag, out in p.parts]
        lib.wait_all([lib.isend(p.token, lib.partner, 0)])
        lib.wait_all(works)
        return p.out

    def send() -> None:
        lib.wait_all([lib.irecv(p.token, lib.partner, 0)])
        lib.wait_all([lib.isend(x, lib.partner, tag) for tag, x in p.parts])

    return lib.either(send, receive)


def unexpected(lib: Any, p: Point) -> Any:
    """Of a pair of ranks, one posts its receives when all messages have arrived: the last one says so."""

    def receive() -> Any:
        lib.wait_all([lib.irecv(p.token, lib.partner, 0)])
        lib.wait_all([lib.irecv(out, lib.partner, tag) for tag, out in p.parts])
        return p.out

    def send() -> None:
        works = [lib.isend(x, lib.partner, tag) for tag, x in p.parts]
        lib.wait_all([*works, lib.isend(p.token, lib.partner, 0)])

    return lib.either(send, receive)


def gloo_object(name: str) -> Build:
    """torch's collectives of objects, which write into lists."""

    def build(lib: Any, p: Point) -> Call:
        every, one = [None] * lib.n, [p.x]
        calls: dict[str, tuple[Call, Call]] = {  # the call, and what this rank has then
            "broadcast": (partial(lib.dist.broadcast_object_list, one, ROOT), lambda: one[0]),
            "gather": (
                partial(lib.dist.gather_object, p.x, every if p.at_root else None, ROOT),
                lambda: p.at_root and every,
            ),
            "all_gather": (partial(lib.dist.all_gather_object, every, p.x), lambda: every),
            "scatter": (partial(lib.dist.scatter_object_list, one, p.x, ROOT), lambda: one[0]),
        }
        call, received = calls[name]
        return lambda: (call(), received())[1]

    return build


_ROWS = [
    Case(
        "barrier",
        "collective",
        lambda r, p: r.group.barrier,
        lambda m, p: m.comm.Barrier,
        lambda g, p: g.dist.barrier,
        result="returned",
        at=("-",),
    ),
    Case(
        "all_reduce",
        "collective",
        lambda r, p: partial(r.group.all_reduce, p.x),
        lambda m, p: partial(m.comm.Allreduce, m.in_place, p.x),
        lambda g, p: partial(g.dist.all_reduce, p.x),
        result="x",
        reduces=True,
    ),
    Case(
        "broadcast",
        "collective",
        lambda r, p: partial(r.group.broadcast, p.x, ROOT),
        lambda m, p: partial(m.comm.Bcast, p.x, ROOT),
        lambda g, p: partial(g.dist.broadcast, p.x, ROOT),
        result="x",
        rooted="reads",
    ),
    Case(
        "reduce",
        "collective",
        lambda r, p: partial(r.group.reduce, p.x, ROOT),
        lambda m, p: partial(m.comm.Reduce, *((m.in_place, p.x) if p.at_root else (p.x, None)), root=ROOT),
        lambda g, p: partial(g.dist.reduce, p.x, ROOT),
        result="x",
        rooted="writes",
        reduces=True,
    ),
    Case(
        "all_gather",
        "collective",
        lambda r, p: partial(r.group.all_gather, p.x, out=p.out),
        lambda m, p: partial(m.comm.Allgather, p.x, p.out),
        lambda g, p: partial(g.dist.all_gather_into_tensor, p.out.view(-1), p.x),
        gathers=True,
    ),
    Case(
        "gather",
        "collective",
        lambda r, p: partial(r.group.gather, p.x, ROOT, out=p.out),
        lambda m, p: partial(m.comm.Gather, p.x, p.out, ROOT),
        lambda g, p: partial(g.dist.gather, p.x, list(p.out) if p.at_root else None, ROOT),
        rooted="writes",
        gathers=True,
    ),
    Case(
        "scatter",
        "collective",
        lambda r, p: partial(r.group.scatter, p.x if p.at_root else None, ROOT, out=p.out),
        lambda m, p: partial(m.comm.Scatter, p.x if p.at_root else None, p.out, ROOT),
        lambda g, p: partial(g.dist.scatter, p.out, list(p.x.chunk(g.n)) if p.at_root else None, ROOT),
        rooted="reads",
        divides=True,
    ),
    Case(
        "reduce_scatter",
        "collective",
        lambda r, p: partial(r.group.reduce_scatter, p.x, out=p.out),
        lambda m, p: partial(m.comm.Reduce_scatter_block, p.x, p.out),
        lambda g, p: partial(g.dist.reduce_scatter_tensor, p.out, p.x),
        divides=True,
        reduces=True,
    ),
    Case(
        "all_to_all",
        "collective",
        lambda r, p: partial(r.group.all_to_all, p.x, out=p.out),
        lambda m, p: partial(m.comm.Alltoall, p.x, p.out),
        lambda g, p: partial(g.dist.all_to_all_single, p.out, p.x),
        divides=True,
        gathers=True,
    ),
    Case(
        "send_recv",
        "message",
        lambda r, p: r.round_trip(partial(r.group.send, p.x, r.partner), partial(r.group.recv, p.out, r.partner)),
        lambda m, p: m.round_trip(partial(m.comm.Send, p.x, m.partner), partial(m.comm.Recv, p.out, m.partner)),
        lambda g, p: g.round_trip(partial(g.dist.send, p.x, g.partner), partial(g.dist.recv, p.out, g.partner)),
        per_call=2,
    ),
    Case(
        "recv_any",
        "message",
        lambda r, p: r.round_trip(partial(r.group.send, p.x, r.partner), lambda: r.group.recv_any(r.any).data),
        lambda m, p: m.round_trip(partial(m.comm.Send, p.x, m.partner), partial(m.recv_any, p.x.dtype)),
        result="returned",
        per_call=2,
    ),
    Case("posted", "message", posted, posted, result="returned", at=(str(MESSAGES),), per_call=MESSAGES),
    Case("unexpected", "message", unexpected, unexpected, result="returned", at=(str(MESSAGES),), per_call=MESSAGES),
    Case(
        "send_object",
        "object",
        lambda r, p: r.round_trip(
            partial(r.group.send_object, p.x, r.partner), partial(r.group.recv_object, r.partner)
        ),
        lambda m, p: m.round_trip(partial(m.comm.send, p.x, m.partner), partial(m.comm.recv, None, m.partner)),
        result="returned",
        at=OBJECTS,
        per_call=2,
    ),
    Case(
        "broadcast_object",
        "object",
        lambda r, p: partial(r.group.broadcast_object, p.x, ROOT),
        lambda m, p: partial(m.comm.bcast, p.x, ROOT),
        gloo_object("broadcast"),
        result="returned",
        rooted="reads",
        at=OBJECTS,
    ),
    Case(
        "gather_object",
        "object",
        lambda r, p: partial(r.group.gather_object, p.x, ROOT),
        lambda m, p: partial(m.comm.gather, p.x, ROOT),
        gloo_object("gather"),
        result="returned",
        rooted="writes",
        gathers=True,
        at=OBJECTS,
    ),
    Case(
        "all_gather_object",
        "object",
        lambda r, p: partial(r.group.all_gather_object, p.x),
        lambda m, p: partial(m.comm.allgather, p.x),
        gloo_object("all_gather"),
        result="returned",
        gathers=True,
        at=OBJECTS,
    ),
    Case(
        "scatter_object",
        "object",
        lambda r, p: partial(r.group.scatter_object, p.x, ROOT),
        lambda m, p: partial(m.comm.scatter, p.x, ROOT),
        gloo_object("scatter"),
        result="returned",
        rooted="reads",
        divides=True,
        at=OBJECTS,
    ),
]
CASES = {case.name: case for case in _ROWS}

_VECTORS: dict[str, tuple[Build, Build]] = {  # with equal counts
    "all_gather": (
        lambda r, p: partial(r.group.all_gather_v, p.x, out=p.flat),
        lambda m, p: partial(m.comm.Allgatherv, p.x, p.out),
    ),
    "gather": (
        lambda r, p: partial(r.group.gather_v, p.x, ROOT, out=p.flat),
        lambda m, p: partial(m.comm.Gatherv, p.x, p.out, ROOT),
    ),
    "scatter": (
        lambda r, p: partial(r.group.scatter_v, p.x if p.at_root else None, p.counts, ROOT, out=p.out),
        lambda m, p: partial(m.comm.Scatterv, p.x if p.at_root else None, p.out, ROOT),
    ),
    "reduce_scatter": (
        lambda r, p: partial(r.group.reduce_scatter_v, p.x, p.counts, out=p.out),
        lambda m, p: partial(m.comm.Reduce_scatter, p.x, p.out, p.counts),
    ),
    "all_to_all": (
        lambda r, p: partial(r.group.all_to_all_v, p.x, p.counts, out=p.out),
        lambda m, p: partial(m.comm.Alltoallv, p.x, p.out),
    ),
}
for _name, (_ours, _mpi) in _VECTORS.items():
    CASES[f"{_name}_v"] = replace(CASES[_name], name=f"{_name}_v", kind="vector", rankwise=_ours, mpi=_mpi, gloo=None)

# ---- the libraries ----


def as_written(function: Call, *args: Any, **keywords: Any) -> Call:
    """The call as a program writes it: a partial with keywords would copy their dict at each call."""
    values = {f"arg{i}": value for i, value in enumerate(args)} | keywords
    words = [name if name.startswith("arg") else f"{name}={name}" for name in values]
    return cast("Call", eval(f"lambda: function({', '.join(words)})", {"function": function, **values}))


class Library:
    """One library, on this rank. n: how many ranks there are. partner: of this rank in messages between two."""

    about: str
    """The library's name and version."""
    barrier: Call

    def __init__(self, rank: int, n: int) -> None:
        self.rank, self.n, self.partner = rank, n, rank ^ 1

    def either(self, even: Call, odd: Call) -> Call:
        """The part of one of the ranks 2i and 2i + 1, all pairs at once; a rank without a partner does nothing."""
        if self.partner >= self.n:
            return lambda: None
        return even if self.rank < self.partner else odd

    def round_trip(self, send: Call, recv: Call) -> Call:
        """A message to the partner and one back; returns what `recv` returns."""
        return self.either(lambda: (send(), recv())[1], lambda: (recv(), send())[0])

    def start(self, collective: Call) -> Call:
        """What starts the collective and returns its work."""
        made = cast("Any", collective if isinstance(collective, partial) else partial(collective))
        return as_written(made.func, *made.args, **made.keywords, async_op=True)

    def wait(self, work: Any) -> None:
        work.wait()


class Rankwise(Library):
    def __init__(self, store: str) -> None:
        import rankwise

        self.group = group = rankwise.init()
        super().__init__(group.rank, group.world_size)
        self.about = f"rankwise {rankwise.__version__}, backend {group.backend}"
        self.barrier, self.any = group.barrier, rankwise.ANY
        self.isend, self.irecv, self.wait_all = group.isend, group.irecv, rankwise.wait_all


class Mpi(Library):
    """mpi4py, over whichever MPI it finds."""

    def __init__(self, store: str) -> None:
        import mpi4py
        from mpi4py import MPI

        self.comm, self.module, self.in_place = MPI.COMM_WORLD, MPI, MPI.IN_PLACE
        super().__init__(self.comm.Get_rank(), self.comm.Get_size())
        library = MPI.Get_library_version().split(",")[0].split("\n")[0].replace("Version:", "").rstrip("\0 ")
        self.about = f"{' '.join(library.split())}, mpi4py {mpi4py.__version__}"
        self.barrier = self.comm.Barrier
        self.isend, self.irecv, self.wait_all = self.comm.Isend, self.comm.Irecv, MPI.Request.Waitall

    def start(self, collective: Call) -> Call:
        made = cast("Any", collective if isinstance(collective, partial) else partial(collective))
        return partial(getattr(self.comm, "I" + made.func.__name__.lower()), *made.args, **made.keywords)

    def wait(self, work: Any) -> None:
        work.Wait()

    def recv_any(self, dtype: np.dtype) -> np.ndarray:
        """An array of unknown length, in new memory."""
        status = self.module.Status()
        self.comm.Probe(self.module.ANY_SOURCE, self.module.ANY_TAG, status)
        out = np.empty(status.Get_count(self.module.BYTE) // dtype.itemsize, dtype)
        self.comm.Recv(out, status.source, status.tag)
        return out


class Gloo(Library):
    """torch.distributed with its gloo backend, on tensors that share the arrays' memory."""

    def __init__(self, store: str) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(int(os.environ["RANKWISE_RANK"]), int(os.environ["RANKWISE_WORLD_SIZE"]))
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.n)
        self.dist = dist
        self.about = f"gloo of torch {torch.__version__}"
        self.barrier = dist.barrier


LIBRARIES: dict[str, Callable[[str], Library]] = {"rankwise": Rankwise, "mpi": Mpi, "gloo": Gloo}


# ---- a point: the data and the result ----


def started_and_waited(library: Library, starts: list[Call]) -> None:
    for work in [start() for start in starts]:
        library.wait(work)


def tensor(array: np.ndarray) -> Any:
    """A tensor over the same memory."""
    import torch

    return torch.from_numpy(array)


def patterns(n: int) -> np.ndarray:
    """The first PERIOD elements of each rank's x: shape (n, PERIOD), so small that all sums are exact."""
    return np.random.default_rng(n).integers(0, 4, (n, PERIOD))


def content(name: str, owner: int) -> Any:
    """The object that rank `owner` passes; every rank's is different."""
    if name == "dict":
        return {"rank": owner, "name": "worker", "loss": 0.25, "done": False}
    if name == "10K":
        rows = [{"id": i, "name": f"row {i}", "at": (0.5 * i, owner), "tags": ["a", None]} for i in range(234)]
        return {"rank": owner, "rows": rows}
    return {"rank": owner, "step": 7, "weights": np.arange(1 << 17) + float(owner)}


class Point:
    """A case at one size or with one object, on this rank: what it passes and receives.

    count: the elements of x, for a case with arrays. memory: "numpy", "registered" or "torch". started: how many
    collectives a call starts before it waits for them, each with arrays of its own; 0 for blocking calls. x and out (or
    flat, with one dimension) are passed, as tensors if the library takes these; given and taken are the same as arrays.
    """

    def __init__(
        self, library: Library, case: str, at: str, count: int, dtype: str, memory: str, started: int = 0
    ) -> None:
        self.case, self.at, self.library = CASES[case], at, library
        self.at_root: bool = library.rank == ROOT
        self.given = self.taken = np.empty(0)
        self.x: Any = None
        self.out: Any = None
        if self.case.kind == "object":
            every = [content(at, rank) for rank in range(library.n)]
            self.x = every[library.rank] if not self.case.divides else every if self.at_root else None
        elif not self.case.at:
            self._make_arrays(count, dtype, memory)
        elif self.case.kind == "message":
            self.given, self.out, self.token = np.zeros(MESSAGES), np.zeros(MESSAGES), np.zeros(1)
            array = self.given if library.rank < library.partner else self.out
            self.parts = list(enumerate(np.split(array, MESSAGES), 1))  # (tag, message)
        self.call: Call = getattr(self.case, type(library).__name__.lower())(library, self)
        if started:
            others = [Point(library, case, at, count, dtype, memory) for _ in range(started - 1)]
            starts = [library.start(point.call) for point in (self, *others)]
            only = starts[0]
            self.call = (lambda: library.wait(only())) if not others else lambda: started_and_waited(library, starts)

    def _make_arrays(self, count: int, dtype: str, memory: str) -> None:
        case, library, n = self.case, cast("Any", self.library), self.library.n
        empty = library.group.empty if memory == "registered" else np.empty
        passed = tensor if memory == "torch" or isinstance(library, Gloo) else np.asarray
        self.given = self.taken = empty((count,), dtype)
        self.x = passed(self.given)
        if case.result == "out" and (case.rooted != "writes" or self.at_root):
            block = count // n if case.divides else count
            self.taken = empty(
                (n, block) if case.gathers and not case.divides else (n * block if case.gathers else block,), dtype
            )
            self.out = passed(self.taken)
        self.flat: Any = passed(self.taken.reshape(-1))
        self.counts: list[int] = [count // n] * n

    def touch(self) -> None:
        """What a program does between two calls: read the result and write the array again."""
        self.taken.max(initial=0)
        self.given[:] = 0  # which repeated sums in place do not change

    def verify(self) -> None:
        """Make the call once with known data. RuntimeError if this rank receives anything else than it must."""
        self.taken[:] = 99
        self.given[:] = self._repeated(patterns(self.library.n)[self.library.rank], 0, self.given.size)
        self.library.barrier()
        returned = self.call()
        received = returned if self.case.result == "returned" else self.taken.ravel()
        right = self.right()
        try:
            if right is not None:
                np.testing.assert_equal(received, right)
        except AssertionError:
            raise RuntimeError(f"rank {self.library.rank} has a wrong result of {self.case.name} ({self.at})") from None
        self.touch()

    def _repeated(self, pattern: np.ndarray, start: int, count: int) -> np.ndarray:
        """Elements start to start + count of the pattern repeated forever."""
        return np.resize(np.roll(pattern.astype(self.given.dtype), -start), count)

    def right(self) -> Any:
        """What this rank must have received; None for nothing."""
        case, rank, n, count = self.case, self.library.rank, self.library.n, self.given.size
        sources = list(range(n)) if case.gathers or case.reduces else [ROOT if case.rooted else self.library.partner]
        only_sends = case.kind == "message" and case.at and rank < self.library.partner
        if case.at == ("-",) or sources[0] >= n or only_sends or (case.rooted == "writes" and not self.at_root):
            return None
        if case.kind == "object":
            objects = [content(self.at, rank if case.divides else source) for source in sources]
            return objects if case.gathers else objects[0]
        sent = patterns(n)[sources]
        rows = sent.sum(axis=0)[None] if case.reduces else sent
        block, start = (count // n, rank * (count // n)) if case.divides else (count, 0)
        return np.concatenate([self._repeated(row, start, block) for row in rows])

    def seconds(self, iterations: int, batches: int, fresh: bool) -> list[float]:
        """The seconds of each of `batches` batches on this rank. fresh: write the arrays before each batch."""
        times = []
        gc.disable()
        for _ in range(batches):
            if fresh:
                self.touch()
            self.library.barrier()
            start = perf_counter()
            for _ in repeat(None, iterations):
                self.call()
            times.append(perf_counter() - start)
        gc.enable()
        return times


# ---- requests of the benchmark, and answers ----


class RankServer:
    """This process: its library, and the arrays of the present point."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.points: dict[str, Point] = {}  # by kind of memory
        self.made_for: object = None

    def point(self, memory: str, **what: Any) -> Point:
        """The point of a request, which is verified when it is made."""
        if self.made_for != what:
            self.points.clear()  # freed before the next are made
            self.made_for = what
        if memory not in self.points:
            made = Point(self.library, memory=memory, **what)
            made.verify()
            self.points[memory] = made
        return self.points[memory]

    def do_time(self, iterations: int, batches: int, fresh: bool, **point: Any) -> dict[str, list[float]]:
        """The seconds of each batch."""
        return {"seconds": self.point(**point).seconds(iterations, batches, fresh)}

    def do_algorithms(self, operation: str, size: int) -> dict[str, Any]:
        """The algorithms that a call tries, and how the ranks share the cores."""
        library: Any = self.library
        engine = library.group.comm.shortcuts
        if not hasattr(engine, "algorithms"):
            raise RuntimeError("--algorithms: this backend has no native engine that chooses algorithms")
        return {"algorithms": engine.algorithms(operation, size), "cores": engine.thresholds[0]}


def main(name: str, path: str, server: Callable[[Library], RankServer] = RankServer) -> None:
    with Client(path) as control:
        try:
            library = LIBRARIES[name](path + ".store")
            control.send({"rank": library.rank, "about": library.about})
            rank = server(library)
            while True:
                request = control.recv()
                control.send(getattr(rank, f"do_{request.pop('do')}")(**request))
        except EOFError:  # the benchmark has ended
            pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the benchmark reports every error
            control.send({"error": f"{type(error).__name__}: {error}"})
            os._exit(1)  # without a library's own clean-up, which could wait for the other ranks forever


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
