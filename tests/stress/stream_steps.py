"""Every operation on every kind of array between two streams. Under a launcher: `stream_steps.py BACKEND ROUNDS SEED`.

One stream writes an array, the group's stream waits for it and runs the operation, and a third stream
waits for that, reads the result and overwrites it; each starts after a random delay. Every rank draws
the same schedule from the seed, and NumPy computes the expected results. An array that is read too early
or written too late makes the run fail.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rankwise.contract.work import Work
from rankwise.group.group import Group
from rankwise.group.streams import Stream
from rankwise.initialize import init
from rankwise.testing.arrays import call
from rankwise.testing.cases import ROWS, SEND_RECV, SPLITS, TAKES_OUT
from rankwise.testing.oracle import Exchange, even

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
    "function": (add, lambda rows: rows.sum(0)),
}

COLLECTIVES = [name for name, row in ROWS.items() if row is not SEND_RECV]
IN_PLACE = [name for name in COLLECTIVES if name not in TAKES_OUT]
LOCATING = ["all_reduce minloc", "reduce maxloc"]
OBJECTS = ["broadcast_object", "gather_object", "all_gather_object", "scatter_object"]
OPERATIONS = [*COLLECTIVES, *LOCATING, *OBJECTS, "irecv"]


def suits(operation: str, kind: str) -> bool:
    """Whether the operation accepts this kind of array."""
    if kind in ("0-d", "number") and operation in SPLITS:
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
        row = SEND_RECV if operation == "irecv" else ROWS.get(operation.split()[0])
        counts = [_shares(rng, length, n) if row and row.vectors else even(length, n) for length in lengths]
        if operation in ("reduce_scatter_v", "scatter_v"):
            counts = [counts[self.root]] * n
        if row is not None:  # not an operation on objects
            self.data = Exchange(row, n, self.root, self.inputs.__getitem__, counts, self._fold)
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
        group, x, name, root = self.group, self.x, self.operation, self.root
        me, n = group.rank, group.world_size
        how = {"async_op": async_op}
        if name == "irecv":
            x[...] = STALE
            sending = group.isend(self._array(self.mine.shape, self.mine)[0], (me + 1) % n)
            work = group.irecv(x, (me - 1) % n)
            sending.wait()
            return work if async_op else work.wait()
        if name in OBJECTS:
            what = self.memory if self.memory is not None and not _is_torch(x) else x
            data: Any = {"x": np.asarray(what) if self.memory is not None else what}
            if name in ("broadcast_object", "scatter_object") and me != root:
                data = None
            elif name == "scatter_object":
                data = [data] * n
            where = () if name == "all_gather_object" else (root,)
            return getattr(group, name)(data, *where, **how)
        out = {} if self.out is None else {"out": self.out}
        return call(group, self.data, x, name.split()[1] if name in LOCATING else OPS[self.op][0], **out, **how)

    def _fold(self, inputs: list[Array]) -> Any:
        rows = np.stack(inputs)
        if self.operation not in LOCATING:
            return OPS[self.op][1](rows)
        extreme, place = (rows.min, rows.argmin) if "min" in self.operation else (rows.max, rows.argmax)
        return extreme(0), place(0).astype(np.int64)

    def _wanted(self) -> Any:
        """The result that this rank must receive, computed with NumPy; None if it receives nothing."""
        name, inputs, me = self.operation, self.inputs, self.group.rank
        if name in ("broadcast_object", "scatter_object"):
            return {"x": inputs[self.root]}
        if name in OBJECTS:
            return [{"x": one} for one in inputs] if name == "all_gather_object" or me == self.root else None
        if name == "exscan" and me == 0:  # the op's neutral element; a function has none
            neutral = {"sum": 0.0, "max": -np.inf}.get(self.op)
            return None if neutral is None else np.full_like(inputs[0], neutral)
        want = self.data.received(me)
        return (want, [row[me] for row in self.data.counts]) if name == "all_to_all_v" else want

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


if __name__ == "__main__":
    backend, rounds, seed = sys.argv[1:]
    with init(backend) as everyone:
        run_steps(everyone, int(rounds), int(seed))
