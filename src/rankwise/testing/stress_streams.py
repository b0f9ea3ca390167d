"""Every operation on every kind of array between two streams: `python -m rankwise.testing.stress_streams`.

One stream writes an array, the group's stream waits for it and runs the operation, and a third stream
waits for that, reads the result and overwrites it; each starts after a random delay. Every rank draws
the same schedule from the seed, and NumPy computes the expected results. An array that is read too early
or written too late makes the run fail.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankwise.arrays.ops import premul_sum
from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.group.streams import Stream
from rankwise.initialize import init
from rankwise.launch.environment import find_job
from rankwise.system.settings import Settings
from rankwise.testing.ranks import close_pools, run_ranks

Array = np.ndarray[Any, Any]

LATEST = 1e-3  # the longest delay, in seconds, with which a function on a stream starts
AHEAD = 6  # steps that are pending before the first is checked
STALE = -77  # the value of an array's elements before it is written, and after its result was read

KINDS = (
    "contiguous", "strided", "reversed", "Fortran", "big-endian", "unaligned", "0-d", "empty", "registered",
    "torch", "torch strided", "read-only", "number",
)  # fmt: skip


def add(a: Any, b: Any) -> Any:
    """An op whose result is not contiguous."""
    total = np.empty((*a.shape, 2))[..., 0]
    total[...] = _copied(a) + _copied(b)
    return total


OPS: dict[str, tuple[Any, Callable[[Array], Array]]] = {
    "sum": ("sum", lambda rows: rows.sum(0)),
    "max": ("max", lambda rows: rows.max(0)),
    "premul_sum": (premul_sum(3), lambda rows: 3 * rows.sum(0)),
    "function": (add, lambda rows: rows.sum(0)),
}

IN_PLACE = ("all_reduce", "broadcast", "reduce")
LOCATING = ("all_reduce minloc", "reduce maxloc")
SPLITTING = ("scatter", "reduce_scatter", "all_to_all", "all_gather_v", "gather_v", "scatter_v", "reduce_scatter_v",
             "all_to_all_v")  # fmt: skip
OPERATIONS = (
    *IN_PLACE, *LOCATING, *SPLITTING, "gather", "all_gather", "scan", "exscan",
    "broadcast_object", "gather_object", "all_gather_object", "scatter_object", "irecv",
)  # fmt: skip


def suits(operation: str, kind: str) -> bool:
    """Whether the operation accepts this kind of array."""
    if kind in ("0-d", "number") and operation in SPLITTING:
        return False
    if kind in ("read-only", "number") and operation == "irecv":
        return False
    return kind != "read-only" or operation not in (*IN_PLACE, *LOCATING)


class Step:
    """One operation: all ranks' inputs, the expected result, and how this rank calls it and waits for it."""

    def __init__(self, number: int, operation: str, kind: str, group: Group, rng: random.Random) -> None:
        n = group.world_size
        self.text = f"step {number}: {operation} of {kind}"
        self.operation, self.kind, self.group = operation, kind, group
        self.root = rng.randrange(n)
        self.op = rng.choice(list(OPS))
        self.with_out = rng.random() < 0.5 and kind != "number"
        self.end = rng.choice(["stream", "stream", "wait", "drop", "synchronize", "blocking"])
        rows = 0 if kind == "empty" else rng.choice([1, 2, 3, 5, 40])
        lengths = [rows] * n
        if operation in ("all_gather_v", "gather_v", "all_to_all_v") and kind != "empty":
            lengths = [rng.randrange(6) for _ in range(n)]
        tail = () if kind in ("0-d", "number") else (3,)
        values = np.random.default_rng(rng.randrange(1 << 30))
        self.inputs = [
            values.integers(-9, 10, (*([] if kind in ("0-d", "number") else [length]), *tail)).astype(np.float64)
            for length in lengths
        ]
        self.counts = [_shares(rng, length, n) for length in lengths]
        if operation in ("reduce_scatter_v", "scatter_v"):
            self.counts = [self.counts[self.root]] * n
        self.mine = self.inputs[group.rank]
        self.x, self.memory = self._array(self.mine.shape)
        self.want = self._wanted()
        self.out: Any = None
        self.late = [rng.random() * LATEST * (rng.random() < 0.7) for _ in range(2 * n)][2 * group.rank :][:2]
        self.seen: Any = None
        self.work: Work[Any] | None = None
        self.read: Work[Any] | None = None

    def start(self, before: Stream, after: Stream) -> None:
        group = self.group
        if self.memory is not None and self.operation != "irecv":
            before.submit(self._write)
            group.stream.wait_stream(before)
        blocking = self.end == "blocking"
        if self.with_out and isinstance(self.want, np.ndarray) and self.operation not in (*IN_PLACE, "irecv"):
            self.out = np.full((*self.want.shape, 2), STALE, np.float64)[..., 0]
        got = self._call(async_op=not blocking)
        if blocking:
            self.seen = _copied(got)
            return
        self.work = got
        if self.end == "stream" and self.operation != "irecv":
            after.wait_stream(group.stream)
            self.read = after.submit(self._read)
        if self.end == "drop" and self._readable() is not None:
            self.work = None

    def _write(self) -> None:
        time.sleep(self.late[0])
        self.memory[...] = self.mine

    def _readable(self) -> Any:
        """The caller's memory that receives the result, or None."""
        if self.want is None:
            return None
        if self.out is not None:
            return self.out
        return self.memory if self.operation in IN_PLACE else None

    def _read(self) -> None:
        time.sleep(self.late[1])
        place = self._readable()
        if place is None:
            assert self.work is not None
            self.seen = _copied(self.work.wait())
        else:
            self.seen = _copied(place)
            place[...] = STALE  # newer than the result

    def finish(self) -> None:
        """Wait for the step and check its result."""
        place = self._readable()
        if self.read is not None:
            self.read.wait()
            if self.work is not None:
                self.work.wait()
            if place is not None and self.kind != "number":
                _same(
                    _copied(place), np.full_like(_copied(place), STALE), f"{self.text}: overwritten after it was read"
                )
        elif self.end == "drop" and self.work is None:
            self.group.stream.synchronize()
            self.seen = _copied(place)
        elif self.work is not None:
            if self.end == "synchronize":
                self.group.stream.synchronize()
                if place is not None:
                    _same(_copied(place), self.want, self.text)
            self.seen = _copied(self.work.wait())
        _same(self.seen, self.want, f"{self.text}, {self.end}")

    def _call(self, async_op: bool) -> Any:
        group, x, name = self.group, self.x, self.operation
        me, n = group.rank, group.world_size
        op = OPS[self.op][0]
        out = {} if self.out is None else {"out": self.out}
        how = {"async_op": async_op}
        root = self.root
        at_root = x if me == root else None
        if name == "irecv":
            to, source = (me + 1) % n, (me - 1) % n
            x[...] = STALE
            sending = group.isend(self._array(self.mine.shape, self.mine)[0], to)
            work = group.irecv(x, source)
            sending.wait()
            return work if async_op else work.wait()
        if name.startswith(("broadcast_object", "gather_object", "all_gather_object", "scatter_object")):
            what = self.memory if self.memory is not None and not _is_torch(x) else x
            data = {"x": np.asarray(what) if self.memory is not None else what}
            if name == "broadcast_object":
                return group.broadcast_object(data if me == root else None, root, **how)
            if name == "scatter_object":
                return group.scatter_object([data] * n if me == root else None, root, **how)
            return group.gather_object(data, root, **how) if name[0] == "g" else group.all_gather_object(data, **how)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": lambda: group.all_reduce(x, op, **how),
            "broadcast": lambda: group.broadcast(x, root, **how),
            "reduce": lambda: group.reduce(x, root, op, async_op=async_op),
            "all_reduce minloc": lambda: group.all_reduce(x, "minloc", **how),
            "reduce maxloc": lambda: group.reduce(x, root, "maxloc", async_op=async_op),
            "gather": lambda: group.gather(x, root, **out, **how),
            "all_gather": lambda: group.all_gather(x, **out, **how),
            "scan": lambda: group.scan(x, op, **out, **how),
            "exscan": lambda: group.exscan(x, op, **out, **how),
            "scatter": lambda: group.scatter(at_root, root, **out, **how),
            "reduce_scatter": lambda: group.reduce_scatter(x, op, **out, **how),
            "all_to_all": lambda: group.all_to_all(x, **out, **how),
            "all_gather_v": lambda: group.all_gather_v(x, **out, **how),
            "gather_v": lambda: group.gather_v(x, root, **out, **how),
            "scatter_v": lambda: group.scatter_v(
                at_root, self.counts[root] if me == root else None, root, **out, **how
            ),
            "reduce_scatter_v": lambda: group.reduce_scatter_v(x, self.counts[0], op, **out, **how),
            "all_to_all_v": lambda: group.all_to_all_v(x, self.counts[me], **how),
        }
        return calls[name]()

    def _wanted(self) -> Any:
        """The result that this rank must receive, computed with NumPy; None if it receives nothing."""
        group, name, inputs = self.group, self.operation, self.inputs
        me, n, root = group.rank, group.world_size, self.root
        fold = OPS[self.op][1]
        if name == "irecv":
            return inputs[(me - 1) % n]
        if name in ("broadcast_object", "scatter_object"):
            return {"x": inputs[root]}
        if name in ("gather_object", "all_gather_object"):
            return [{"x": one} for one in inputs] if name[0] == "a" or me == root else None
        if name in ("gather", "gather_v", "reduce", "reduce maxloc") and me != root:
            return None
        if name == "all_to_all_v":
            blocks = [
                np.split(one, np.cumsum(counts)[:-1])[me] for one, counts in zip(inputs, self.counts, strict=True)
            ]
            return (np.concatenate(blocks), [len(block) for block in blocks])
        if name == "exscan":
            # Rank 0 receives the op's neutral element; a function has none.
            neutral = {"sum": 0.0, "premul_sum": 0.0, "max": -np.inf}.get(self.op)
            if me == 0:
                return None if neutral is None else np.full_like(inputs[0], neutral)
            return fold(np.stack(inputs[:me]))
        if name in ("all_gather_v", "gather_v"):
            return np.concatenate(inputs)
        if name in ("scatter", "scatter_v"):
            counts = self.counts[root]
            return (
                np.array_split(inputs[root], n)[me]
                if name == "scatter"
                else np.split(inputs[root], np.cumsum(counts)[:-1])[me]
            )
        if name == "all_to_all":
            return np.concatenate([np.array_split(one, n)[me] for one in inputs])
        rows = np.stack(inputs)
        if name == "broadcast":
            return inputs[root]
        if name in ("gather", "all_gather"):
            return rows
        if name == "scan":
            return fold(rows[: me + 1])
        if name == "reduce_scatter":
            return np.array_split(fold(rows), n)[me]
        if name == "reduce_scatter_v":
            return np.split(fold(rows), np.cumsum(self.counts[0])[:-1])[me]
        if name in LOCATING:
            extreme, place = (rows.min(0), rows.argmin(0)) if "min" in name else (rows.max(0), rows.argmax(0))
            return (extreme, place.astype(np.int64))
        return fold(rows)

    def _array(self, shape: tuple[int, ...], values: Any = STALE) -> tuple[Any, Any]:
        """The array to pass, and a NumPy array of the same memory to write through; None if it cannot change."""
        made: Any
        kind = self.kind
        if kind == "number":
            return float(self.mine), None
        if kind in ("torch", "torch strided"):
            import torch

            made = torch.empty((*shape[:-1], 2 * shape[-1]), dtype=torch.float64)[..., ::2]
            made = made.contiguous() if kind == "torch" else made
            made[...] = values if np.isscalar(values) else torch.from_numpy(np.asarray(values))
            return made, made.numpy()
        wide = (*shape[:-1], 2 * shape[-1]) if shape else ()
        if kind == "strided":
            made = np.empty(wide)[..., ::2]
        elif kind == "reversed":
            made = np.empty(shape)[::-1]
        elif kind == "Fortran":
            made = np.empty(shape, order="F")
        elif kind == "big-endian":
            made = np.empty(shape, ">f8")
        elif kind == "unaligned":
            made = np.frombuffer(bytearray(8 * int(np.prod(shape)) + 1), np.uint8)[1:].view(np.float64).reshape(shape)
        elif kind == "registered":
            made = self.group.empty(shape)
        else:
            made = np.empty(shape)
        made[...] = values
        given = made
        if kind == "read-only":
            given = made.view()
            given.flags.writeable = False
        return given, made


def _shares(rng: random.Random, total: int, n: int) -> list[int]:
    """n random counts that add up to `total`."""
    cuts = sorted(rng.randint(0, total) for _ in range(n - 1))
    return [end - begin for begin, end in itertools.pairwise([0, *cuts, total])]


def _is_torch(x: Any) -> bool:
    return type(x).__module__.partition(".")[0] == "torch"


def _copied(value: Any) -> Any:
    """A copy of a result, with NumPy arrays in native byte order."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(one) for one in value)
    if value is None or isinstance(value, int):
        return value
    array = np.array(value.numpy() if _is_torch(value) else value)
    return array.astype(array.dtype.newbyteorder("="))


def _same(got: Any, want: Any, text: str) -> None:
    if isinstance(want, dict):
        return _same(got["x"], want["x"], text)
    if isinstance(want, (tuple, list)):
        assert len(got) == len(want), f"{text}: got {got}, expected {want}"
        for one, other in zip(got, want, strict=True):
            _same(one, other, text)
        return None
    equal = got is None if want is None else got is not None and np.array_equal(got, want)
    assert equal, f"{text}: got {got}, expected {want}"
    return None


def run_steps(group: Group, rounds: int, seed: int, kinds: Sequence[str] = KINDS) -> int:
    """Run every operation on every kind of array `rounds` times, in an order drawn from `seed`; return how many."""
    rng = random.Random(seed)
    pairs = [(operation, kind) for operation in OPERATIONS for kind in kinds if suits(operation, kind)] * rounds
    rng.shuffle(pairs)
    pending: list[Step] = []
    with Stream("before") as before, Stream("after") as after:
        for number, (operation, kind) in enumerate(pairs):
            step = Step(number, operation, kind, group, rng)
            try:
                step.start(before, after)
                pending.append(step)
                if len(pending) > AHEAD:
                    pending.pop(0).finish()
            except Exception as error:
                raise RuntimeError(f"seed {seed}, at {step.text}") from error
        for step in pending:
            step.finish()
        before.synchronize()
        after.synchronize()
        group.stream.synchronize()
    group.barrier()
    return len(pairs)


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m rankwise.testing.stress_streams", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--backend", default="shm")
    parser.add_argument(
        "-n", type=int, default=3, metavar="RANKS", help="how many ranks, if no launcher started them (default 3)"
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    run = partial(run_steps, rounds=options.rounds, seed=options.seed)
    try:
        if find_job(os.environ, Settings.read()).launcher:
            with init(options.backend) as group:
                count = run(group)
        else:
            count = run_ranks(options.n, run, backend=options.backend, timeout=3600.0)[0]
    finally:
        close_pools()
    print(f"{count} operations, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
