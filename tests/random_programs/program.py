"""A program for the ranks of a group, as data: the calls of each of its threads, and how each rank makes them.

Every rank runs the same steps in the order of their numbers, and takes part in those of the groups that it is in.
A step needs no later step to end, so no program can deadlock: no rank is behind those that wait at the lowest number.
That stays so if any steps are left out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

DROPPED = -1
"""In place of the number of a step before which a Work is waited for: its Work is dropped at once."""

Parts: TypeAlias = "tuple[tuple[int, ...], ...]"


@dataclass(frozen=True)
class How:
    """How one rank does its part of a step.

    x, out: the layouts of the arrays passed, from generator.LAYOUTS; no out: none is passed. wait: None is a blocking
    call; else it starts a Work, and says before which step the rank waits for it. finish: how it waits, one of
    waits.FINISHES. pause: milliseconds that it sleeps first.
    """

    x: str = "plain"
    out: str = ""
    wait: int | None = None
    finish: str = "wait"
    pause: float = 0.0

    def __str__(self) -> str:
        words = [self.x] * (self.x != "plain") + [f"out={self.out}"] * bool(self.out)
        if self.wait is not None:
            words.append("dropped" if self.wait == DROPPED else f"{self.finish}@{self.wait}")
        return " ".join(words + [f"{self.pause:g}ms"] * bool(self.pause)) or "-"


@dataclass(frozen=True)
class Step:
    """number: the steps of all threads have different ones. group: the number of the step that made it, or of a thread,
    negative. hows: by rank of the world."""

    number: int
    group: int
    hows: tuple[How, ...]

    def __str__(self) -> str:
        hows = str(self.hows[0]) if len(set(self.hows)) == 1 else " | ".join(map(str, self.hows))
        return f"{self.number:4} on {self.group}: {self.what()}   [{hows}]"

    def what(self) -> str:
        raise NotImplementedError

    @property
    def drops(self) -> bool:
        """Whether a rank drops a Work."""
        return any(how.wait == DROPPED for how in self.hows)


@dataclass(frozen=True)
class Collective(Step):
    """shape: of what a rank passes; of vector collectives and objects, axis 0 is about the ranks' mean length.

    root: modulo size.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: str = ""
    root: int = 0

    def what(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)} {self.op} root={self.root}"


@dataclass(frozen=True)
class Message(Step):
    """One message. source, dest: modulo the group's size. kind: "array" or "object". received: by which call.

    In a How, x and wait are the sender's and out the receiver's; the message's own `wait` is the receiver's.
    """

    source: int
    dest: int
    tag: int
    kind: str
    dtype: str
    count: int
    received: str
    wait: int | None

    def what(self) -> str:
        later = "" if self.wait is None else " dropped" if self.wait == DROPPED else f"@{self.wait}"
        ends = f"{self.source} -> {self.dest} tag={self.tag}, by {self.received}{later}"
        return f"{self.kind} {self.dtype}[{self.count}] {ends}"

    @property
    def drops(self) -> bool:
        return self.wait == DROPPED or super().drops


@dataclass(frozen=True)
class Exchange(Step):
    """Several messages at once, (source, dest, tag, count) each. received: how each rank of the world receives its own;
    fenced: a barrier ends the step, so that no later message is taken for one of these."""

    kind: str
    messages: tuple[tuple[int, int, int, int], ...]
    received: tuple[str, ...]
    fenced: bool

    def what(self) -> str:
        return (
            f"exchange of {self.kind}s {list(self.messages)} by {list(self.received)}{', then barrier' * self.fenced}"
        )


@dataclass(frozen=True)
class Shift(Step):
    """Each rank sends to the rank `by` after it and receives from the one `by` before it."""

    by: int
    tag: int
    dtype: str
    shape: tuple[int, ...]

    def what(self) -> str:
        return f"sendrecv {self.dtype}{list(self.shape)} by {self.by} tag={self.tag}"


@dataclass(frozen=True)
class Make(Step):
    """A new group, or one for each of several parts: ranks of the world, in order. way: split, subgroup or dup."""

    way: str
    parts: Parts

    def what(self) -> str:
        return f"{self.way} into {self.parts}"


@dataclass(frozen=True)
class Close(Step):
    """fenced: a barrier comes first, since a rank has dropped Works that it still owes the others."""

    fenced: bool

    def what(self) -> str:
        return "barrier, then close" if self.fenced else "close"


@dataclass(frozen=True)
class Fault:
    """What happens to a rank, `after` milliseconds from when it has come to a step."""

    kind: str
    rank: int
    number: int
    after: float

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.kind} {self.after:g} ms after it has come to step {self.number}"


@dataclass(frozen=True)
class Program:
    """threads: the steps of each thread of a rank. The group of thread i, a copy of the world, has the number -1-i."""

    seed: int
    n: int
    threads: tuple[tuple[Step, ...], ...]
    fault: Fault | None = None

    def __str__(self) -> str:
        lines = [f"program {self.seed} on {self.n} ranks"]
        for number, steps in enumerate(self.threads):
            lines += [f"  thread {number}, whose group is {-1 - number}", *(f"  {step}" for step in steps)]
        return "\n".join([*lines, *([f"  {self.fault}"] if self.fault else [])])

    def steps(self) -> Iterator[Step]:
        for steps in self.threads:
            yield from steps

    def parts(self) -> dict[int, Parts]:
        """The ranks of the world that each group has."""
        world = (tuple(range(self.n)),)
        found = {-1 - thread: world for thread in range(len(self.threads))}
        found |= {step.number: step.parts for step in self.steps() if isinstance(step, Make)}
        return found

    def only(self, numbers: Container[int]) -> Program:
        """The program of these steps, without those on groups that are not made then."""
        made = {-1 - thread for thread in range(len(self.threads))}
        threads = []
        for steps in self.threads:
            kept = []
            for step in steps:
                if step.number in numbers and step.group in made:
                    kept.append(step)
                    if isinstance(step, Make):
                        made.add(step.number)
            threads.append(tuple(kept))
        return replace(self, threads=tuple(threads))


def members(parts: Parts, rank: int) -> tuple[int, ...] | None:
    """The part that a rank of the world is in."""
    return next((part for part in parts if rank in part), None)
