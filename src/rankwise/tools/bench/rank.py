"""The program of each rank process of a benchmark, for every library.

    python rank.py LIBRARY SOCKET

It is run by its path, also in environments without rankwise, so it imports only the standard library
and NumPy; the class of a library imports that library. It connects to the benchmark's socket, reports
its rank, and answers each line of JSON with one line of JSON. In between it sleeps in a read, so that
it disturbs no other library's measurement.

`x` is the array that a rank passes to an operation, `out` the array that receives the result, or None
if the operation works in place. A point is one operation at one size. A batch is a number of calls in
a row, timed together after a barrier.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from time import perf_counter, process_time, sleep
from typing import Any, NamedTuple

import numpy as np

PERIOD = 1021  # elements after which the test data repeats; a prime, so that no misplaced block looks correct
ROOT = 0  # the rank that broadcast, reduce, gather and scatter start from or end at

Call = Callable[[], object]


class Row(NamedTuple):
    """An operation, as the requests describe it: what bench/cases.py makes of its row in rankwise's table.

    takes: the arguments of the pointer level; with "recv", there is an `out`. rooted: whether only ROOT "reads" or
    "writes". divides: x is divided among the ranks. gathers: `out` has a block from each rank.
    """

    name: str
    takes: Sequence[str]
    rooted: str
    divides: bool
    gathers: bool

    @property
    def reduces(self) -> bool:
        return "op" in self.takes

    def block(self, count: int, n: int) -> int:
        """How many of the `count` elements that a rank passes go to each rank: a share if x is divided, else all."""
        return count // n if self.divides else count


class Library(ABC):
    """One library at one level, on one rank."""

    rank: int
    world_size: int
    about: str
    """The library's name and version."""
    barrier: Call

    @abstractmethod
    def collective(self, row: Row, x: np.ndarray, out: np.ndarray | None, op: str) -> Call:
        """A function without arguments that runs a collective on these arrays."""

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        """Memory for an array of a point."""
        return np.empty(count, dtype)

    def point(self, row: Row, count: int, dtype: str, op: str) -> Point:
        return Point(row, count, dtype, op, self)

    def call(self, point: Point) -> Call:
        if point.row.name == "barrier":
            return self.barrier
        if point.row.name == "send_recv":
            return self.ping_pong(point.x, point.out)
        return self.collective(point.row, point.x, point.out, point.op if point.row.reduces else "sum")

    @abstractmethod
    def send(self, x: np.ndarray, dest: int) -> Call: ...

    @abstractmethod
    def recv(self, out: np.ndarray, source: int) -> Call: ...

    def ping_pong(self, x: np.ndarray, out: np.ndarray | None) -> Call:
        """A round trip between the ranks 2i and 2i + 1, all pairs at once; a rank without a partner does nothing."""
        assert out is not None
        partner = self.rank ^ 1
        if partner >= self.world_size:
            return lambda: None
        steps = [self.send(x, partner), self.recv(out, partner)]
        first, second = steps if self.rank < partner else steps[::-1]
        return lambda: (first(), second())

    def seconds(self, point: Point, iterations: int, batches: int, before: Call | None = None) -> list[float]:
        return time_batches(self.call(point), self.barrier, iterations, batches, before)


def time_batches(call: Call, barrier: Call, iterations: int, batches: int, before: Call | None = None) -> list[float]:
    """The seconds of each of `batches` batches of `iterations` calls on this rank. before: called before each."""
    times = []
    gc.disable()
    for _ in range(batches):
        if before is not None:
            before()
        barrier()
        start = perf_counter()
        for _ in repeat(None, iterations):
            call()
        times.append(perf_counter() - start)
    gc.enable()
    return times


class Arrays(Library):
    """rankwise, called with arrays."""

    def __init__(self) -> None:
        import rankwise

        self.group = group = rankwise.init()
        self.rank, self.world_size = group.rank, group.world_size
        self.about = f"rankwise {rankwise.__version__}, backend {group.backend}"
        self.barrier = group.barrier

    def collective(self, row: Row, x: np.ndarray, out: np.ndarray | None, op: str) -> Call:
        given: list[Any] = [x, *[ROOT] * bool(row.rooted), *[op] * row.reduces]
        if "recv" not in row.takes:  # it works in place
            return partial(getattr(self.group, row.name), *given)
        if row.rooted == "reads" and self.rank != ROOT:
            given[0] = None
        if out is not None and row.gathers and not row.divides:
            out = out.reshape(self.world_size, x.size)
        return partial(getattr(self.group, row.name), *given, out=out)

    def send(self, x: np.ndarray, dest: int) -> Call:
        return partial(self.group.send, x, dest)

    def recv(self, out: np.ndarray, source: int) -> Call:
        return partial(self.group.recv, out, source)


class Registered(Arrays):
    """The same on registered memory, on which the ranks work in place."""

    def __init__(self, arrays: Arrays) -> None:
        vars(self).update(vars(arrays))
        self.about = arrays.about + ", on registered memory"

    def empty(self, count: int, dtype: np.dtype) -> np.ndarray:
        array: np.ndarray = self.group.empty(count, dtype)
        return array


class Pointers(Library):
    """rankwise's communicator below the arrays, called with addresses and counts."""

    def __init__(self, arrays: Arrays) -> None:
        self.comm = arrays.group.comm
        self.rank, self.world_size = arrays.rank, arrays.world_size
        self.about = arrays.about + ", by pointer"
        self.barrier = self.comm.barrier

    def collective(self, row: Row, x: np.ndarray, out: np.ndarray | None, op: str) -> Call:
        arguments = {"send": address(x), "recv": address(out), "count": row.block(x.size, self.world_size)}
        arguments |= {"dtype": dtype_code(x), "op": op_code(op), "root": ROOT}
        call = partial(getattr(self.comm, row.name), *(arguments[name] for name in row.takes))
        return call if self.comm.blocking else self.complete(call)

    def complete(self, call: Call) -> Call:
        """`call`, followed by a wait until it is complete. Older revisions of rankwise have no such function."""

        def complete() -> None:
            call()
            self.comm.sync()

        return complete

    def send(self, x: np.ndarray, dest: int) -> Call:
        ptr, count, dtype = address(x), x.size, dtype_code(x)
        return lambda: self.comm.send(ptr, count, dtype, dest).wait()

    def recv(self, out: np.ndarray, source: int) -> Call:
        ptr, count, dtype = address(out), out.size, dtype_code(out)
        return lambda: self.comm.recv(ptr, count, dtype, source).wait()


class Native(Pointers):
    """rankwise's native engine: batches, barriers and the clock are all in C++."""

    def __init__(self, arrays: Arrays) -> None:
        super().__init__(arrays)
        self.about = arrays.about + ", in C++"

    def call(self, point: Point) -> Call:
        return lambda: self.seconds(point, 1, 1)

    def seconds(self, point: Point, iterations: int, batches: int, before: Call | None = None) -> list[float]:
        x, codes = point.x, (dtype_code(point.x), op_code(point.op))
        given = (address(x), address(point.out), point.row.block(x.size, self.world_size))
        from rankwise import _bench

        return _bench.time_batches(self.comm.shortcuts, point.row.name, *given, *codes, iterations, batches)


class Bound(Arrays):
    """No library: threads of rank 0 make the operation's bare loads and stores on the arrays of all ranks."""

    def __init__(self, arrays: Arrays) -> None:
        vars(self).update(vars(arrays))
        self.about = "loads and stores alone"

    def point(self, row: Row, count: int, dtype: str, op: str) -> Point:
        return AllRanks(row, count, dtype, op, self)

    def bounds(self, points: Sequence[Point], iterations: int, batches: int) -> list[float]:
        x, first = [address(point.x) for point in points], points[0]
        out = [0 if point.out is None else address(point.out) for point in points]
        count, codes = first.x.size, (dtype_code(first.x), op_code(first.op))
        from rankwise import _bench

        return _bench.bound_seconds(first.row.name, x, out, count, *codes, iterations, batches)


class Mpi(Library):
    """mpi4py, over whichever MPI it finds."""

    def __init__(self) -> None:
        import mpi4py
        from mpi4py import MPI

        self.comm = comm = MPI.COMM_WORLD
        self.MPI = MPI
        self.rank, self.world_size = comm.Get_rank(), comm.Get_size()
        library = MPI.Get_library_version().split(",")[0].split("\n")[0].replace("Version:", "").rstrip("\0 ")
        self.about = f"{' '.join(library.split())}, mpi4py {mpi4py.__version__}"
        self.barrier = comm.Barrier

    def collective(self, row: Row, x: np.ndarray, out: np.ndarray | None, op: str) -> Call:
        comm, at_root, in_place = self.comm, self.rank == ROOT, self.MPI.IN_PLACE
        if op == "mean":
            raise ValueError("MPI has no mean")
        reduce_op = getattr(self.MPI, "PROD" if op == "product" else op.upper())
        calls: dict[str, Call] = {
            "all_reduce": partial(comm.Allreduce, in_place, x, op=reduce_op),
            "broadcast": partial(comm.Bcast, x, ROOT),
            "reduce": partial(comm.Reduce, *((in_place, x) if at_root else (x, None)), op=reduce_op, root=ROOT),
            "all_gather": partial(comm.Allgather, x, out),
            "gather": partial(comm.Gather, x, out, ROOT),
            "scatter": partial(comm.Scatter, x if at_root else None, out, ROOT),
            "reduce_scatter": partial(comm.Reduce_scatter_block, x, out, op=reduce_op),
            "all_to_all": partial(comm.Alltoall, x, out),
        }
        return calls[row.name]

    def send(self, x: np.ndarray, dest: int) -> Call:
        return partial(self.comm.Send, x, dest)

    def recv(self, out: np.ndarray, source: int) -> Call:
        return partial(self.comm.Recv, out, source)


class Gloo(Library):
    """torch.distributed with its gloo backend, on tensors that share the arrays' memory."""

    def __init__(self, store: str) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.world_size = int(os.environ["RANKWISE_RANK"]), int(os.environ["RANKWISE_WORLD_SIZE"])
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.world_size)
        self.torch, self.dist = torch, dist
        self.about = f"gloo of torch {torch.__version__}"
        self.barrier = dist.barrier

    def tensor(self, array: np.ndarray) -> Any:
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def collective(self, row: Row, x: np.ndarray, out: np.ndarray | None, op: str) -> Call:
        dist, at_root, n = self.dist, self.rank == ROOT, self.world_size
        named = {"mean": "AVG", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
        reduce_op = getattr(dist.ReduceOp, named.get(op, op.upper()))
        given = self.tensor(x)
        taken = given if out is None else self.tensor(out)
        gathered = list(taken.chunk(n)) if at_root else None
        scattered = list(given.chunk(n)) if at_root else None
        calls: dict[str, Call] = {
            "all_reduce": partial(dist.all_reduce, given, op=reduce_op),
            "broadcast": partial(dist.broadcast, given, src=ROOT),
            "reduce": partial(dist.reduce, given, dst=ROOT, op=reduce_op),
            "all_gather": partial(dist.all_gather_into_tensor, taken, given),
            "gather": partial(dist.gather, given, gathered, dst=ROOT),
            "scatter": partial(dist.scatter, taken, scattered, src=ROOT),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, taken, given, op=reduce_op),
            "all_to_all": partial(dist.all_to_all_single, taken, given),
        }
        return calls[row.name]

    def send(self, x: np.ndarray, dest: int) -> Call:
        return partial(self.dist.send, self.tensor(x), dest)

    def recv(self, out: np.ndarray, source: int) -> Call:
        return partial(self.dist.recv, self.tensor(out), source)


def address(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


def dtype_code(array: np.ndarray) -> Any:
    from rankwise.contract.types import DType

    kind = "BF" if array.dtype.name == "bfloat16" else array.dtype.kind.upper()
    return DType[f"{kind}{8 * array.itemsize}"]


def op_code(op: str) -> Any:
    from rankwise.contract.types import ReduceOp

    return ReduceOp["PROD" if op == "product" else op.upper()]


# ---- arrays and expected results ----


def dtype_of(name: str) -> np.dtype:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes

    extension: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return extension


def out_count(row: Row, count: int, n: int, rank: int) -> int | None:
    """The elements of `out` on a rank that passes `count`, or None if there is no `out`."""
    if "recv" not in row.takes or (row.rooted == "writes" and rank != ROOT):
        return None
    return row.block(count, n) * (n if row.gathers else 1)


def patterns(op: str, n: int) -> np.ndarray:
    """The first PERIOD elements of each rank's x as integers: shape (n, PERIOD).

    They are small enough that every result is exact in every dtype of at least 8 bits; int8 sums may
    wrap, but then the expected result wraps too.
    """
    random = np.random.default_rng(n)
    if op == "product":  # one rank at most has a 2
        return np.where(random.integers(0, 2 * n, PERIOD) == np.arange(n)[:, None], 2, 1)
    if op == "mean":  # of all ranks' second terms it is (n - 1) / 2
        return random.integers(0, 4, PERIOD) + (np.arange(n)[:, None] + np.arange(PERIOD)) % n
    return random.integers(0, 4 if op == "sum" else 64, (n, PERIOD))


def reduced(op: str, values: np.ndarray) -> np.ndarray:
    """`values`, one row per rank, reduced over the ranks: integers, or halves for mean."""
    if op == "mean":
        return np.asarray(values.mean(axis=0))
    arithmetic: dict[str, np.ufunc] = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}
    bitwise: dict[str, np.ufunc] = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    result: np.ndarray = (arithmetic | bitwise)[op].reduce(values, axis=0)
    return result


def repeated(pattern: np.ndarray, dtype: np.dtype, start: int, count: int) -> np.ndarray:
    """Elements start to start + count of the pattern repeated for ever."""
    return np.resize(np.roll(pattern.astype(dtype), -start), count)


def expected(row: Row, op: str, dtype: np.dtype, count: int, n: int, rank: int) -> np.ndarray | None:
    """The correct content of a rank's `out`, or of x if there is no `out`; None if the rank receives nothing."""
    given, block = patterns(op, n), row.block(count, n)
    if row.name == "send_recv":
        return repeated(given[rank ^ 1], dtype, 0, count) if rank ^ 1 < n else None
    if not row.takes or (row.rooted == "writes" and rank != ROOT):
        return None
    sources = reduced(op, given)[None] if row.reduces else given[ROOT][None] if row.rooted == "reads" else given
    start = rank * block if row.divides else 0
    return np.concatenate([repeated(values, dtype, start, block) for values in sources])


def wrong_bytes(result: np.ndarray, right: np.ndarray) -> int:
    """How many bytes of `result` differ from `right`; all of them if the lengths differ."""
    if result.nbytes != right.nbytes:
        return max(result.nbytes, right.nbytes)
    return int(np.count_nonzero(result.view(np.uint8) != right.view(np.uint8)))


class Point:
    """One operation at one size, with this rank's arrays."""

    def __init__(self, row: Row, count: int, dtype: str, op: str, contender: Library, rank: int | None = None) -> None:
        n, rank = contender.world_size, contender.rank if rank is None else rank
        self.row, self.op, self.n, self.rank = row, op, n, rank
        self.dtype = dtype_of(dtype)
        taken = out_count(row, count, n, rank)
        self.x = contender.empty(count, self.dtype)
        self.out = None if taken is None else contender.empty(taken, self.dtype)
        self.make_neutral()

    def make_neutral(self) -> None:
        """Set values that repeated reductions in place do not change; this also touches every page."""
        self.x[:] = 1 if self.op == "product" else 0
        if self.out is not None:
            self.out[:] = 0

    def check(self, contender: Library) -> int:
        """Run the operation once on data with a known result; returns the number of wrong bytes on this rank."""
        self.fill()
        contender.barrier()
        contender.call(self)()
        return self.wrong()

    def fill(self) -> None:
        self.x[:] = repeated(patterns(self.op, self.n)[self.rank], self.dtype, 0, self.x.size)
        if self.out is not None:
            self.out.view(np.uint8)[:] = 0xAA

    def wrong(self) -> int:
        right = expected(self.row, self.op, self.dtype, self.x.size, self.n, self.rank)
        wrong = 0 if right is None else wrong_bytes(self.x if self.out is None else self.out, right)
        self.make_neutral()
        return wrong

    def seconds(self, contender: Library, iterations: int, batches: int, warm: int, fresh: bool) -> list[float]:
        """The times of the batches, after `warm` untimed ones. fresh: write the arrays before each batch."""
        return contender.seconds(self, iterations, batches + warm, self.touch if fresh else None)[warm:]

    def touch(self) -> None:
        """What a program does between two calls: read the result and write the array again."""
        (self.x if self.out is None else self.out).view(np.uint8).max(initial=0)
        self.x[:] = 1 if self.op == "product" else 0


class AllRanks(Point):
    """A point whose arrays, those of all ranks, are in rank 0's memory."""

    def __init__(self, row: Row, count: int, dtype: str, op: str, contender: Library) -> None:
        ranks = range(contender.world_size) if contender.rank == ROOT else ()
        self.points = [Point(row, count, dtype, op, contender, rank) for rank in ranks]

    def check(self, contender: Library) -> int:
        for point in self.points:
            point.fill()
        self.seconds(contender, 1, 0, 1, False)
        return sum(point.wrong() for point in self.points)

    def seconds(self, contender: Library, iterations: int, batches: int, warm: int, fresh: bool) -> list[float]:
        assert isinstance(contender, Bound)
        return contender.bounds(self.points, iterations, batches + warm)[warm:] if self.points else [0.0] * batches


# ---- requests of the benchmark, and answers ----


class RankServer:
    """This process: its library by level, and the arrays of the present point."""

    def __init__(self, contenders: dict[str, Library]) -> None:
        self.contenders = contenders
        self.points: dict[str, Point] = {}  # by kind of memory
        self.made_for: object = None

    def answer(self, do: str, **what: Any) -> dict[str, Any]:
        """Carry out a request: `do` names one of the methods below, and what else the request has is passed to it."""
        answer: dict[str, Any] = getattr(self, f"do_{do}")(**what)
        return answer

    def arrays(self, level: str, operation: Sequence[Any], count: int, dtype: str, op: str) -> Point:
        key = (Row(*operation), count, dtype, op)
        if self.made_for != key:
            self.points.clear()  # freed before the next are made
            self.made_for = key
        kind = level if level in ("registered", "bound") else "usual"
        if kind not in self.points:
            self.points[kind] = self.contenders[level].point(*key)
        return self.points[kind]

    def do_time(
        self, level: str, fresh: bool, iterations: int, batches: int, warm: int, **point: Any
    ) -> dict[str, list[float]]:
        """The seconds of each batch."""
        made = self.arrays(level, **point)
        return {"seconds": made.seconds(self.contenders[level], iterations, batches, warm, fresh)}

    def do_check(self, level: str, fresh: bool, **point: Any) -> dict[str, int]:
        """How many bytes are wrong."""
        return {"wrong": self.arrays(level, **point).check(self.contenders[level])}

    def do_drop(self) -> dict[str, Any]:
        """Free the arrays."""
        self.points.clear()
        return {}

    def do_memory(self) -> dict[str, int]:
        return memory()

    def do_late(self, level: str, seconds: float) -> dict[str, float]:
        """The CPU time that this rank burns in a barrier that rank 0 enters `seconds` late."""
        contender = self.contenders[level]
        contender.barrier()
        before = process_time()
        if contender.rank == ROOT:
            sleep(seconds)
        contender.barrier()
        return {"cpu": process_time() - before}

    def do_machine(self, what: str, bytes: int) -> dict[str, float]:
        """The seconds that two threads of rank 0 take to measure the machine while the other ranks sleep."""
        if self.contenders["array"].rank != ROOT:
            return {}
        from rankwise import _bench

        return {"seconds": _bench.line_seconds() if what == "line" else _bench.core_seconds(what, bytes)}

    def do_algorithms(self, operation: str, bytes: int) -> dict[str, Any]:
        """What a call tries, and how the ranks share the cores."""
        ours: Any = self.contenders["array"]
        if not hasattr(engine := ours.group.comm.shortcuts, "algorithms"):
            raise RuntimeError("--algorithms: this backend has no native engine that chooses algorithms")
        return {"algorithms": engine.algorithms(operation, bytes), "cores": engine.thresholds[0]}


def memory() -> dict[str, int]:
    """Bytes of this process: rss (resident), pss (resident, with each shared page divided by the number of
    processes that map it) and pss_shmem (the part of pss that the ranks share)."""
    sizes = {}
    with open("/proc/self/smaps_rollup") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name in ("Rss", "Pss", "Pss_Shmem"):
                sizes[name.lower()] = int(value.split()[0]) * 1024
    return sizes


def libraries_of(name: str, store: str) -> dict[str, Library]:
    """The library `name` at each of its levels: rankwise has five, the others have one."""
    if name == "rankwise":
        arrays = Arrays()
        return {
            "array": arrays,
            "registered": Registered(arrays),
            "pointer": Pointers(arrays),
            "native": Native(arrays),
            "bound": Bound(arrays),
        }
    return {"array": Gloo(store) if name == "gloo" else Mpi()}


def main(name: str, path: str, server: Callable[[dict[str, Library]], RankServer] = RankServer) -> None:
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(path)
        lines = control.makefile("rw", encoding="utf-8", newline="\n")

        def reply(message: dict[str, Any]) -> None:
            lines.write(json.dumps(message) + "\n")
            lines.flush()

        try:
            before = memory()
            contenders = libraries_of(name, path + ".store")
            first = contenders["array"]
            reply({"rank": first.rank, "about": first.about, "memory": before})
            rank = server(contenders)
            for line in lines:
                reply(rank.answer(**json.loads(line)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the benchmark reports every error
            reply({"error": f"{type(error).__name__}: {error}"})
            os._exit(1)  # without a library's own clean-up, which could wait for the other ranks forever


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
