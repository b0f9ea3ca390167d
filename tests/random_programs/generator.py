"""Draws a program from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from random_programs import oracle
from random_programs.program import (
    DROPPED,
    Close,
    Collective,
    Exchange,
    Fault,
    How,
    Make,
    Message,
    Parts,
    Program,
    Shift,
    Step,
    members,
)

BYTES = (40, 64, 256, 4096, 8 << 10, 16 << 10, 24 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20)
"""Where an engine changes its way; sizes about these are drawn."""

LAYOUTS = ("plain", "plain", "plain", "strided", "reversed", "transposed", "registered", "registered")
FINISHES = ("wait", "wait", "result", "poll", "thread", "callback", "exception", "all", "all")
OBJECTS = ("broadcast_object", "gather_object", "all_gather_object", "scatter_object")
ARRAYS = (
    "all_reduce", "all_reduce", "reduce", "broadcast", "gather", "all_gather", "scan", "exscan",
    *oracle.SPLIT, *oracle.VECTOR,
)  # fmt: skip
# How a message is received; those of the second group, only while a thread waits for them or asks, on some backends.
ARRAY_RECEIVES = ("recv", "recv shape", "irecv", "irecv", "irecv shape", "any source")
LATE_RECEIVES = ("recv_any", "probe")
OBJECT_RECEIVES = ("recv_object", "irecv_object", "any source")
EXCHANGES = ("exact", "started", "batch", "any source", "any tag", "any")


@dataclass(frozen=True)
class Style:
    """What programs may contain.

    mpi: only what MPI has too. slow_receives: a receive of unknown length or of an object makes no progress unless a
    thread waits for it, so that the sender must not wait for its end before. faults: kinds of faults, one for each
    program.
    """

    mpi: bool = False
    slow_receives: bool = False
    faults: tuple[str, ...] = ()
    threads: int = 3
    steps: int = 40


def draw(seed: int, style: Style, n: int | None = None) -> Program:
    """The program of a seed. n: its ranks; by default drawn too."""
    rng = random.Random(seed)
    ranks = rng.choice((1, 2, 2, 3, 3, 4, 5))
    ranks = n or (max(2, ranks) if style.faults else ranks)
    count = 1 if rng.random() < 0.6 else rng.randint(2, max(2, style.threads))
    threads: list[tuple[Step, ...]] = []
    number = 0
    for thread in range(min(count, style.threads)):
        steps = _Thread(rng, style, ranks, -1 - thread, number).steps(rng.randint(3, style.steps))
        number += len(steps)
        threads.append(tuple(steps))
    fault = None
    if style.faults:
        after = rng.choice((0.0, 0.0, 0.05, 0.2, 0.5, 1.0, 3.0, 10.0))
        at = rng.choice(threads[0]).number
        fault = Fault(rng.choice(style.faults), rng.randrange(ranks), at, after)
    return Program(seed, ranks, tuple(threads), fault)


@dataclass
class _State:
    """A group that is open. until: the first step at which no Work on it is pending; dropped: one was dropped.
    quiet: the first step at which no message of the group is on its way."""

    parts: Parts
    until: int = 0
    quiet: int = 0
    dropped: bool = False


@dataclass
class _Thread:
    rng: random.Random
    style: Style
    n: int
    base: int
    number: int
    groups: dict[int, _State] = field(default_factory=dict)

    def steps(self, count: int) -> list[Step]:
        self.groups[self.base] = _State((tuple(range(self.n)),))
        self.end = self.number + count
        found = []
        for _ in range(count):
            found.append(self.step())
            self.number += 1
        return found

    def step(self) -> Step:
        rng = self.rng
        group = rng.choice([self.base, *self.groups])
        state = self.groups[group]
        kind = rng.random()
        if kind < 0.10 and len(self.groups) < 6:
            return self.make(group)
        if kind < 0.16 and group != self.base and state.until <= self.number:
            del self.groups[group]
            return Close(self.number, group, self.hows(), state.dropped)
        if kind < 0.34:
            return self.message(group)
        if kind < 0.43:
            return self.exchange(group)
        if kind < 0.50:
            return self.shift(group)
        return self.collective(group)

    # ---- how a rank does it ----

    def hows(self) -> tuple[How, ...]:
        """Blocking, on plain arrays; some ranks sleep first."""
        rng = self.rng
        return tuple(How(pause=round(rng.uniform(0, 3), 2) if rng.random() < 0.1 else 0.0) for _ in range(self.n))

    def ways(self, group: int, shape: tuple[int, ...], outs: bool, drops: bool = True) -> tuple[How, ...]:
        """Each rank has memory and a wait of its own; under MPI either all ranks wait at once or none."""
        rng = self.rng
        some_later = rng.random() < 0.5
        found = []
        for how in self.hows():
            later = some_later and (self.style.mpi or rng.random() < 0.8)
            wait = self.later(group, drops) if later else None
            out = rng.choice(LAYOUTS) if outs and rng.random() < 0.4 else ""
            finish = rng.choice(FINISHES) if wait is not None else "wait"
            found.append(How(rng.choice(LAYOUTS), out, wait, finish, how.pause))
        return tuple(found)

    def later(self, group: int, drops: bool = True) -> int:
        """Before which step a Work is waited for."""
        state = self.groups[group]
        if drops and not self.style.mpi and self.rng.random() < 0.1:
            state.dropped = True
            return DROPPED
        wait = self.rng.randint(self.number + 1, min(self.end, self.number + 10))
        state.until = max(state.until, wait)
        return wait

    # ---- what is passed ----

    def count(self, itemsize: int) -> int:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.08:
            return 0
        if kind < 0.6:
            return rng.randint(1, 40)
        if kind < 0.8:
            return rng.randint(41, 2000)
        return max(0, rng.choice(BYTES) // itemsize + rng.randint(-1, 1))

    def shape(self, dtype: str, rows: bool, blocks: int) -> tuple[int, ...]:
        """rows: it has an axis 0. blocks: a rank passes or receives that many of it."""
        rng = self.rng
        if not rows and rng.random() < 0.1:
            return ()
        count = self.count(oracle.dtype_of(dtype).itemsize * blocks)
        kind = rng.random()
        if kind < 0.7:
            return (count,)
        columns = rng.choice((0, 1, 2, 3, 7))
        shape = (count // max(1, columns), columns)
        return shape if kind < 0.9 else (*shape, rng.choice((1, 2)))

    # ---- the steps ----

    def collective(self, group: int) -> Step:
        rng, mpi = self.rng, self.style.mpi
        kind, root = rng.random(), rng.randrange(self.n)
        if kind < 0.08:
            hows = self.ways(group, (), outs=False)
            return Collective(self.number, group, hows, "barrier")
        if kind < 0.22:
            length = rng.choice((0, 0, 10, 100, 300, 5000, 200_000))
            hows = self.ways(group, (), outs=False) if not mpi else self.hows()
            return Collective(self.number, group, hows, rng.choice(OBJECTS), shape=(length,), root=root)
        name = rng.choice(ARRAYS)
        dtype = rng.choice(oracle.DTYPES)
        if mpi:
            refused = (*oracle.NARROW, "bool") if name in oracle.REDUCED else tuple(oracle.NARROW_TYPES)
            dtype = rng.choice([each for each in oracle.DTYPES if each not in refused])
        op = ""
        if name in oracle.REDUCED:
            ops = oracle.ops_of(name, dtype)
            op = rng.choice([each for each in ops if not mpi or each not in ("mean", "function", "minloc", "maxloc")])
        one = name in ("all_reduce", "reduce", "broadcast", "scan", "exscan")
        shape = self.shape(dtype, name in (*oracle.SPLIT, *oracle.VECTOR), 1 if one else self.n)
        if op == "function" or op.endswith("loc"):
            shape = (min(shape[0], 3000), *shape[1:]) if shape else shape
        hows = self.ways(group, shape, outs=name != "barrier")
        return Collective(self.number, group, hows, name, dtype, shape, op, root)

    def message(self, group: int) -> Step:
        rng, style = self.rng, self.style
        kind = "object" if rng.random() < 0.3 else "array"
        dtypes = [each for each in oracle.DTYPES if not style.mpi or each not in oracle.NARROW_TYPES]
        dtype = rng.choice(dtypes) if kind == "array" else ""
        received = rng.choice(OBJECT_RECEIVES if kind == "object" else (*ARRAY_RECEIVES, *LATE_RECEIVES))
        later = received.startswith("i") or (received == "any source" and rng.random() < 0.5)
        slow = style.slow_receives and later and kind == "object"
        # Who receives from any source, or learns the length of what comes, must take no other message for it.
        tag = rng.choice((0, 1, 2)) if kind == "array" else 10
        if received in ("any source", "probe"):
            tag = 100 + self.number
        state = self.groups[group]
        receive = self.later(group, drops=False) if later else None
        send = self.later(group) if slow or rng.random() < 0.6 else None
        if slow and receive is not None and send is not None and send != DROPPED:
            receive, send = min(receive, send), max(receive + 1, send)
            state.until = max(state.until, send)
        may_drop = not style.mpi and kind == "array" and later and received != "any source" and send != DROPPED
        if may_drop and rng.random() < 0.1:
            receive, state.dropped = DROPPED, True
        at = self.end if DROPPED in (receive, send) else max(receive or 0, self.number + 1)
        state.quiet = max(state.quiet, at)
        count = self.count(oracle.dtype_of(dtype).itemsize) if kind == "array" else rng.choice((0, 10, 300, 200_000))
        ends = rng.randrange(self.n), rng.randrange(self.n)
        hows = []
        layouts = [rng.choice(LAYOUTS) for _ in range(2)]
        for how in self.hows():
            # x is the sender's memory and out the receiver's; wait the sender's, and that of the receiver in Message.
            finish = rng.choice([each for each in FINISHES if not slow or each != "all"])
            hows.append(How(layouts[0], layouts[1], send, finish, how.pause))
        return Message(self.number, group, tuple(hows), *ends, tag, kind, dtype, count, received, receive)

    def exchange(self, group: int) -> Step:
        rng, style = self.rng, self.style
        state = self.groups[group]
        kind = "object" if rng.random() < 0.3 else "array"
        quiet = state.quiet <= self.number
        ways = [way for way in EXCHANGES if quiet or way not in ("any tag", "any")]
        ways = [way for way in ways if kind == "array" or way != "batch"]
        ways = [way for way in ways if not style.mpi or way != "batch"]
        ways = [way for way in ways if not (style.slow_receives and kind == "object") or way != "started"]
        received = tuple(rng.choice(ways) for _ in range(self.n))
        sizes = (0, 1, 9, 300, 5_000) if rng.random() < 0.8 else (0, 9, 20_000, 60_000)
        first = 1000 + 10 * self.number
        messages = tuple(
            (rng.randrange(self.n), rng.randrange(self.n), first + rng.randrange(3), rng.choice(sizes))
            for _ in range(rng.randint(1, 3 * self.n))
        )
        fenced = any(way in ("any tag", "any") for way in received)
        return Exchange(self.number, group, self.hows(), kind, messages, received, fenced)

    def shift(self, group: int) -> Step:
        rng = self.rng
        dtype = rng.choice([each for each in oracle.DTYPES if not self.style.mpi or each not in oracle.NARROW_TYPES])
        shape = self.shape(dtype, rows=False, blocks=1)
        hows = self.ways(group, shape, outs=True, drops=False)
        state = self.groups[group]
        state.quiet = max([state.quiet, self.number + 1, *(how.wait or 0 for how in hows)])
        return Shift(self.number, group, hows, rng.randrange(-1, self.n + 1), rng.choice((0, 1, 30)), dtype, shape)

    def make(self, group: int) -> Step:
        rng = self.rng
        parents = self.groups[group].parts
        way = rng.choice(("split", "split", "subgroup", "dup"))
        parts = parents
        if way != "dup":
            found = []
            for parent in parents:
                ranks = list(parent)
                rng.shuffle(ranks)
                left = ranks[: rng.randint(1, len(ranks))] if rng.random() < 0.4 else ranks
                cut = rng.randint(0, len(left))
                found += [tuple(part) for part in (left[:cut], left[cut:]) if part]
            parts = tuple(found)
        self.groups[self.number] = _State(parts)
        return Make(self.number, group, self.hows(), way, parts)


def part_of(program: Program, step: Step, rank: int) -> tuple[int, ...] | None:
    """The ranks that do a step together with this one."""
    return members(program.parts()[step.group], rank)
