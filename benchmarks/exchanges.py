"""What neighbours exchange, next to MPI: sendrecv, ghost cells, windows of messages; scans; and what groups cost.

    python benchmarks/exchanges.py [ROW ...] [-n 2] [--vs openmpi,mpich] [--rounds 3] [--time 0.1]

Every rank exchanges with the next and the previous one, around the ring of all ranks. ROW: only those whose name
contains one of these words. The libraries run in turns, with new ranks in every round; how the others are installed,
`rankwise bench --vs openmpi` says. The table, in Markdown, has the time of an exchange on the slowest rank, in us: the
median over the rounds of each round's median batch, and the best batch of all.

sendrecv: of a NumPy array of so many bytes. rows, columns: the ghost cells on both sides of an n x n array of float64,
which are contiguous, or strided (MPI: two Sendrecv, of a vector datatype for columns). window: 64 irecv, 64 isend, and
a wait for all. scan, exscan: sums over the ranks before (MPI leaves rank 0's result of exscan undefined). dup: a
duplicate of the group, closed again. shared: an array of one element that the ranks share, made and dropped (MPI: a
window of shared memory, freed). lock: taken and released, by one rank alone (MPI: multiprocessing.Lock).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any, cast

import numpy as np

Call = Callable[[], Any]
SIZES = {"8 B": 8} | {f"{kib} KiB": kib << 10 for kib in (1, 16, 32, 64, 256)} | {"1 MiB": 1 << 20}
WINDOW = 64
BATCH = 300  # us
LINES = 256, 1024, 4096

# ---- a rank, which may be in an environment without rankwise ----


class Rankwise:
    def __init__(self) -> None:
        import rankwise

        self.group = rankwise.init()
        self.rank, self.n, self.barrier = self.group.rank, self.group.world_size, self.group.barrier
        self.mesh = rankwise.Mesh(self.group, ring=self.n, periodic=True)
        self.isend, self.irecv, self.wait_all = self.group.isend, self.group.irecv, rankwise.wait_all
        self.dup = lambda: self.group.dup().close()
        self.shared = lambda: self.group.shared_zeros(1)
        self.lock = self.group.lock()

    def scan(self, x: Any, out: Any) -> Call:
        return lambda: self.group.scan(x, out=out)

    def exscan(self, x: Any, out: Any) -> Call:
        return lambda: self.group.exscan(x, out=out)

    def sendrecv(self, x: Any, dst: int, out: Any, src: int) -> Call:
        return lambda: self.group.sendrecv(x, dst, src, out=out)

    def halo(self, x: Any, dimension: int) -> Call:
        return lambda: self.mesh.exchange_halo(x, "ring", dimension=dimension)

    def slowest(self, times: list[float]) -> list[float]:
        return [float(one) for one in self.group.all_reduce(np.array(times), "max")]


class Mpi:
    def __init__(self) -> None:
        from mpi4py import MPI

        self.MPI, self.comm = MPI, MPI.COMM_WORLD
        self.rank, self.n, self.barrier = self.comm.rank, self.comm.size, self.comm.Barrier
        self.isend, self.irecv, self.wait_all = self.comm.Isend, self.comm.Irecv, MPI.Request.Waitall
        self.dup = lambda: self.comm.Dup().Free()
        self.shared = lambda: MPI.Win.Allocate_shared(8, 8, comm=self.comm).Free()
        self.lock = multiprocessing.Lock()

    def scan(self, x: Any, out: Any) -> Call:
        return lambda: self.comm.Scan(x, out)

    def exscan(self, x: Any, out: Any) -> Call:
        return lambda: self.comm.Exscan(x, out)

    def sendrecv(self, x: Any, dst: int, out: Any, src: int) -> Call:
        return lambda: self.comm.Sendrecv(x, dst, 0, out, src, 0)

    def halo(self, x: Any, dimension: int) -> Call:
        n, double = len(x), self.MPI.DOUBLE
        dtype = double if dimension == 0 else double.Create_vector(n, 1, n).Commit()
        count = n if dimension == 0 else 1
        flat = x.reshape(-1)
        first, inner, last_inner, last = (
            [flat[at * (n if dimension == 0 else 1) :], count, dtype] for at in (0, 1, n - 2, n - 1)
        )
        before, after = (self.rank - 1) % self.n, (self.rank + 1) % self.n

        def exchange() -> None:
            self.comm.Sendrecv(inner, before, 0, last, after, 0)
            self.comm.Sendrecv(last_inner, after, 1, first, before, 1)

        return exchange

    def slowest(self, times: list[float]) -> list[float]:
        slow = np.empty(len(times))
        self.comm.Allreduce(np.array(times), slow, self.MPI.MAX)
        return [float(one) for one in slow]


def window(library: Any, x: Any, dst: int, out: Any, src: int) -> Call:
    isend, irecv, wait_all = library.isend, library.irecv, library.wait_all

    def exchange() -> None:
        works = [irecv(each, src) for each in out]
        works += [isend(each, dst) for each in x]
        wait_all(works)

    return exchange


def rows(library: Any, words: list[str]) -> dict[str, Callable[[], Call]]:
    """What makes each exchange, by its name."""
    src, dst = (library.rank - 1) % library.n, (library.rank + 1) % library.n

    def sendrecv(size: int) -> Call:
        x, out = np.full(size // 8, float(library.rank)), np.zeros(size // 8)
        return cast(Call, library.sendrecv(x, dst, out, src))

    def windows(size: int) -> Call:
        x, out = np.full((WINDOW, size // 8), float(library.rank)), np.zeros((WINDOW, size // 8))
        return window(library, list(x), dst, list(out), src)

    def halo(n: int, dimension: int) -> Call:
        return cast(Call, library.halo(np.full((n, n), float(library.rank)), dimension))

    def scan(name: str, size: int) -> Call:
        x, out = np.full(size // 8, float(library.rank)), np.zeros(size // 8)
        return cast(Call, getattr(library, name)(x, out))

    def lock() -> None:
        with library.lock:
            pass

    made = {f"sendrecv {name}": partial(sendrecv, size) for name, size in SIZES.items()}
    made |= {f"rows n={n}": partial(halo, n, 0) for n in LINES} | {f"columns n={n}": partial(halo, n, 1) for n in LINES}
    made |= {f"window {name}": partial(windows, SIZES[name]) for name in ("8 B", "1 KiB", "64 KiB")}
    made |= {f"{name} {at}": partial(scan, name, SIZES[at]) for name in ("scan", "exscan") for at in ("1 KiB", "1 MiB")}
    made |= {"dup": lambda: library.dup, "shared": lambda: library.shared}
    made["lock"] = lambda: lock if library.rank == 0 else lambda: None
    return {name: make for name, make in made.items() if not words or any(word in name for word in words)}


def measure(library: Any, call: Call, seconds: float) -> tuple[float, float]:
    """(median, best) of the batches, in us per call, on the slowest rank."""
    call()
    times: list[float] = []
    calls, batches = 5, 5
    gc.disable()
    for _ in range(2):  # first to see how long a call takes
        times = []
        for _ in range(batches):
            library.barrier()
            start = time.perf_counter()
            for _ in repeat(None, calls):
                call()
            times.append((time.perf_counter() - start) / calls * 1e6)
        times = library.slowest(times)
        # Short batches: the best ones are those that nothing else on this machine has disturbed.
        calls = max(1, int(BATCH / min(times)))
        batches = int(max(10, min(1000, seconds * 1e6 / (calls * statistics.median(times)))))
    gc.enable()
    return statistics.median(times), min(times)


def rank(name: str, seconds: float, words: list[str]) -> None:
    library = Rankwise() if name == "rankwise" else Mpi()
    found = {row: measure(library, make(), seconds) for row, make in rows(library, words).items()}
    if library.rank == 0:
        print(json.dumps(found), flush=True)


# ---- the command ----


def run(launch: Any, name: str, args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    launcher = [word.replace("{n}", str(args.ranks)) for word in launch.launcher]
    program = [__file__, "--rank", "rankwise" if name == "rankwise" else "mpi", "--time", str(args.time), *args.rows]
    done = subprocess.run(
        [*launcher, *launch.python, *program], env={**os.environ, **launch.environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\n{name} failed with exit status {done.returncode}")
    found: dict[str, tuple[float, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--vs", default="openmpi,mpich", help="other libraries, or none (default openmpi,mpich)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", type=float, default=0.1, help="seconds for each row in each round")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank, args.time, args.rows)
        return

    from rankwise.tools.bench.libraries import ours, peer

    launches = {"rankwise": ours(), **{name: peer(name) for name in args.vs.split(",") if name}}
    found: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in launches}
    for _ in range(args.rounds):
        for name, launch in launches.items():
            found[name].append(run(launch, name, args))
    print(f"{args.ranks} ranks, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs\n")
    print(f"| us, median (best) | {' | '.join(launches)} |\n|---|{'---:|' * len(launches)}")
    for row in found["rankwise"][0]:
        cells = [
            f"{statistics.median(each[row][0] for each in rounds):.1f} ({min(each[row][1] for each in rounds):.1f})"
            for rounds in found.values()
        ]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
