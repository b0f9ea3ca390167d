"""Plays the same programs with mpi4py's calls: on an MPI, and on rankwise's mpi4py.

    mpiexec -n 3 python mpi_play.py FOLDER
    rankwise run -n 3 --mpi4py mpi_play.py FOLDER

The programs are in FOLDER/programs, and each rank leaves a line of JSON for each in FOLDER/rank-0, …, as with play.py.
"""

from __future__ import annotations

import json
import math
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_programs import oracle
from random_programs.memory import Memory, room
from random_programs.program import Close, Collective, Exchange, Make, Message, Program, Shift, Step, members

Check = Callable[[Any], str]

NAMES = {
    "all_reduce": "Allreduce", "reduce": "Reduce", "broadcast": "Bcast", "gather": "Gather", "all_gather": "Allgather",
    "scatter": "Scatterv", "scatter_v": "Scatterv", "gather_v": "Gatherv", "all_gather_v": "Allgatherv",
    "reduce_scatter": "Reduce_scatter", "reduce_scatter_v": "Reduce_scatter", "all_to_all": "Alltoallv",
    "all_to_all_v": "Alltoallv", "scan": "Scan", "exscan": "Exscan", "barrier": "Barrier",
}  # fmt: skip
OBJECTS = 1 << 20  # bytes that an object takes at most


def op_of(name: str) -> Any:
    return getattr(MPI, {"product": "PROD"}.get(name, name.upper()))


class Wrong(AssertionError):
    """A result is not what the oracle says."""


def play(program: Program) -> None:
    """Play it as one rank of COMM_WORLD."""
    comms = [MPI.COMM_WORLD.Dup() for _ in program.threads]
    lines = [_Thread(program, number, comm) for number, comm in enumerate(comms)]
    others = [threading.Thread(target=line.run) for line in lines[1:]]
    for thread in others:
        thread.start()
    lines[0].run()
    for thread in others:
        thread.join()
    for comm in comms:
        comm.Free()


class _Thread:
    """One thread of a rank."""

    def __init__(self, program: Program, number: int, comm: Any) -> None:
        self.program, self.number, self.rank = program, number, comm.rank
        self.parts = program.parts()
        self.comms = {-1 - number: comm}
        self.pending: list[tuple[Step, int, str, Any, Check]] = []

    def run(self) -> None:
        for step in self.program.threads[self.number]:
            self.wait_before(step.number)
            time.sleep(step.hows[self.rank].pause / 1e3)
            if step.group in self.comms:
                self.do(step, self.comms[step.group])
        self.wait_before(None)
        for number, comm in self.comms.items():
            if number >= 0:
                comm.Free()

    def do(self, step: Step, comm: Any) -> None:
        match step:
            case Collective():
                self.objects(step, comm) if step.name.endswith("_object") else self.collective(step, comm)
            case Message():
                self.message(step, comm)
            case Exchange():
                self.exchange(step, comm)
            case Shift():
                self.shift(step, comm)
            case Make():
                self.make(step, comm)
            case Close():
                self.comms.pop(step.group).Free()

    def compare(self, step: Step, text: str) -> None:
        if text:
            raise Wrong(f"seed {self.program.seed}, rank {self.rank}, {step}: {text}")

    # ---- requests ----

    def finish(self, step: Step, wait: int | None, request: Any, check: Check) -> None:
        if wait is None:
            self.compare(step, check(None))
        else:
            self.pending.append((step, wait, step.hows[self.rank].finish, request, check))

    def wait_before(self, number: int | None) -> None:
        due = [entry for entry in self.pending if number is None or entry[1] <= number]
        self.pending = [entry for entry in self.pending if number is not None and entry[1] > number]
        random.Random(f"{self.program.seed} {number} {self.rank}").shuffle(due)
        together = [request for _, _, finish, request, _ in due if finish == "all" and not isinstance(request, _Object)]
        MPI.Request.Waitall(together)
        for step, _, finish, request, check in due:
            got = None
            if isinstance(request, _Object):
                got = request.wait()
            elif finish == "poll":
                while not request.Test():
                    time.sleep(1e-4)
            elif finish != "all":
                request.Wait()
            self.compare(step, check(got))

    # ---- the steps ----

    def make(self, step: Make, comm: Any) -> None:
        mine = members(step.parts, self.rank)
        if step.way == "dup":
            made = comm.Dup()
        elif step.way == "subgroup":
            parent = members(self.parts[step.group], self.rank)
            assert parent is not None
            wanted = comm.Get_group().Incl([parent.index(rank) for rank in mine]) if mine else MPI.GROUP_EMPTY
            made = comm.Create(wanted)
        else:
            color = MPI.UNDEFINED if mine is None else step.parts.index(mine)
            made = comm.Split(color, 0 if mine is None else 5 * mine.index(self.rank) - 7)
        self.compare(step, f"got {made}" if (made == MPI.COMM_NULL) != (mine is None) else "")
        if mine is not None:
            self.comms[step.number] = made
            self.compare(step, oracle.differs((made.rank, made.size), (mine.index(self.rank), len(mine)), True))

    def objects(self, step: Collective, comm: Any) -> None:
        size, me = comm.size, comm.rank
        root = step.root % size
        mine = [oracle.thing(self.program.seed, step.number, member, step.shape[0]) for member in range(size)]
        got = {
            "all_gather_object": lambda: comm.allgather(mine[me]),
            "gather_object": lambda: comm.gather(mine[me], root),
            "broadcast_object": lambda: comm.bcast(mine[me] if me == root else None, root),
            "scatter_object": lambda: comm.scatter(mine if me == root else None, root),
        }[step.name]()
        self.compare(step, oracle.differs(got, oracle.received(self.program.seed, step, size, me), True))

    def collective(self, step: Collective, comm: Any) -> None:
        name, size, me, seed = step.name, comm.size, comm.rank, self.program.seed
        how, root = step.hows[self.rank], step.root % comm.size
        want = oracle.received(seed, step, size, me)
        array = want[0] if isinstance(want, tuple) else want
        dtype = oracle.dtype_of(step.dtype or "int8")
        given = None
        if name != "barrier" and (name not in oracle.FROM_ROOT or me == root):
            given = oracle.given(seed, step, size, me)
        x = None if given is None else Memory(given)
        in_place = name in ("all_reduce", "reduce", "scan") and not how.out
        out = x if in_place or (name == "broadcast" and x) else None if array is None else room(array.shape, dtype)
        send = None if x is None else MPI.IN_PLACE if in_place and (name != "reduce" or me == root) else x.array
        receive = None if out is None or array is None else out.array
        row = math.prod(step.shape[1:])
        arguments: list[Any] = [send, receive]
        if name == "barrier":
            arguments = []
        elif name == "broadcast":
            arguments = [receive]
        elif "scatter" in name or "all_to_all" in name:
            rows = self.rows(step, size, me)
            if "reduce" in name:
                arguments.append([count * row for count in rows])
            else:
                arguments[0] = None if x is None else [x.array, [count * row for count in rows]]
            if "all_to_all" in name:
                counts = [count * row for count in (self.rows(step, size, source)[me] for source in range(size))]
                arguments[1] = [receive, counts]
        elif name in ("gather_v", "all_gather_v") and receive is not None:
            arguments[1] = [receive, [count * row for count in oracle.counts(seed, step, size)]]
        more: dict[str, Any] = {"op": op_of(step.op)} if step.op else {}
        if name in oracle.FROM_ROOT + oracle.TO_ROOT:
            more["root"] = root
        call = NAMES[name] if how.wait is None else f"I{NAMES[name].lower()}"
        request = getattr(comm, call)(*arguments, **more)

        def check(got: Any) -> str:
            exact = name not in oracle.REDUCED
            if name == "exscan" and me == 0:  # MPI leaves it undefined
                return ""
            if out is not None and array is not None and (text := out.differs(array, exact)):
                return text
            if x is not None and given is not None and (x is not out or array is None):
                return x.differs(given)
            return ""

        self.finish(step, how.wait, request, check)

    def rows(self, step: Collective, size: int, member: int) -> list[int]:
        """How many rows of a member's array each member gets."""
        if step.name in oracle.VECTOR:
            return oracle.counts(self.program.seed, step, size, member)
        return [len(part) for part in np.array_split(np.empty(step.shape[0]), size)]

    def shift(self, step: Shift, comm: Any) -> None:
        how, size, me = step.hows[self.rank], comm.size, comm.rank
        to, source = (me + step.by) % size, (me - step.by) % size
        given, want = (
            oracle.contents(self.program.seed, step.number, each, step.shape, step.dtype) for each in (me, source)
        )
        x, out = Memory(given), room(want.shape, want.dtype)
        call = comm.Sendrecv if how.wait is None else comm.Isendrecv
        request = call(x.array, to, step.tag, out.array, source, step.tag)
        self.finish(step, how.wait, request, lambda got: out.differs(want) or x.differs(given))

    def message(self, step: Message, comm: Any) -> None:
        how, size, me, seed = step.hows[self.rank], comm.size, comm.rank, self.program.seed
        source, dest = step.source % size, step.dest % size
        by_object = step.kind == "object"
        what = (
            oracle.thing(seed, step.number, 0, step.count)
            if by_object
            else oracle.contents(seed, step.number, 0, (step.count,), step.dtype)
        )
        if me == dest and step.wait is not None:
            self.receive(step, comm, source, what)
        if me == source:
            start = how.wait if how.wait is not None or source != dest else step.number + 1
            x = None if by_object else Memory(what)
            if by_object:
                request = comm.send(what, dest, step.tag) if start is None else comm.isend(what, dest, step.tag)
            else:
                assert x is not None
                request = (comm.Send if start is None else comm.Isend)(x.array, dest, step.tag)
            self.finish(step, start, request, lambda got: "" if x is None else x.differs(what))
        if me == dest and step.wait is None:
            self.receive(step, comm, source, what)

    def receive(self, step: Message, comm: Any, source: int, what: Any) -> None:
        tag, wanted = step.tag, MPI.ANY_SOURCE if step.received == "any source" else source
        if step.kind == "object":
            if step.wait is None:
                self.compare(step, oracle.differs(comm.recv(None, wanted, tag), what, True))
            else:
                request = _Object(comm.irecv(bytearray(OBJECTS), wanted, tag))
                self.finish(step, step.wait, request, lambda got: oracle.differs(got, what, True))
            return
        if step.received in ("recv_any", "probe"):
            status = MPI.Status()
            comm.Probe(wanted, tag, status)
            count = status.Get_count(MPI.BYTE)
            self.compare(step, "" if count == what.nbytes else f"a message of {count} bytes")
        into = room(what.shape, what.dtype)
        request = (comm.Recv if step.wait is None else comm.Irecv)(into.array, wanted, tag)
        self.finish(step, step.wait, request, lambda got: into.differs(what))

    def exchange(self, step: Exchange, comm: Any) -> None:
        size, me = comm.size, comm.rank
        messages = [
            (number, source % size, dest % size, tag, count)
            for number, (source, dest, tag, count) in enumerate(step.messages)
        ]
        by_object = step.kind == "object"
        sending: list[tuple[Any, Any]] = []
        for number, source, dest, tag, count in messages:
            if source == me and by_object:
                sending.append((comm.isend((number, "x" * count), dest, tag), None))
            elif source == me:
                sent = np.full(count, number, np.int32)
                sending.append((comm.Isend(sent, dest, tag), sent))
        left, way = [each for each in messages if each[2] == me], step.received[self.rank]
        keys = [(source, tag) for _, source, _, tag, _ in left]
        if way not in ("exact", "started"):
            keys = [(MPI.ANY_SOURCE if way != "any tag" else source, MPI.ANY_TAG if way != "any source" else tag)
                    for source, tag in keys]  # fmt: skip
        random.Random(f"{self.program.seed} {step.number} {self.rank}").shuffle(keys)
        for wanted, tag in keys:
            status = MPI.Status()
            if by_object:
                got = comm.recv(None, wanted, tag, status)
            else:
                message = comm.Mprobe(wanted, tag, status)
                got = np.empty(status.Get_count(MPI.INT32_T), np.int32)
                message.Recv(got)
            came = status.Get_source(), status.Get_tag()
            first = next((each for each in left if (each[1], each[3]) == came), None)
            self.compare(step, "" if first else f"a message from {came}; left are {left}")
            assert first is not None
            left.remove(first)
            number, count = first[0], first[4]
            want = (number, "x" * count) if by_object else np.full(count, number, np.int32)
            self.compare(step, oracle.differs(got, want, True))
        for request, _ in sending:
            request.Wait()
        if step.fenced:
            comm.Barrier()


class _Object:
    """The request of an object."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def wait(self) -> Any:
        return self._request.wait()


def main(folder: str) -> None:
    with open(Path(folder, "programs"), "rb") as file:
        programs = pickle.load(file)
    with open(Path(folder, f"rank-{MPI.COMM_WORLD.rank}"), "w") as report:
        threading.excepthook = lambda found: _end(report, found.exc_value)
        for program in programs:
            begun = time.monotonic()
            try:
                play(program)
            except BaseException as error:  # noqa: BLE001 - the others must not wait for this rank
                _end(report, error)
            took = {"seed": program.seed, "took": time.monotonic() - begun}
            report.write(json.dumps(took) + "\n")
            report.flush()


def _end(report: Any, error: BaseException | None) -> None:
    report.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")
    report.flush()
    MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
