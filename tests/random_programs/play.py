"""Plays a program as one rank of a group, and compares what it gets with what the oracle says.

    rankwise run -n 3 --keep-going python play.py BACKEND FOLDER

plays the programs in FOLDER/programs (a pickle), one after the other; each rank leaves a line of JSON for each in
FOLDER/rank-0, ….
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import rankwise as rw
from random_programs import oracle
from random_programs.memory import Memory, room
from random_programs.program import (
    DROPPED,
    Close,
    Collective,
    Exchange,
    How,
    Make,
    Message,
    Program,
    Shift,
    Step,
    members,
)
from random_programs.victim import Interrupted, Victim
from random_programs.waits import FINISHES, SOON, Wrong
from rankwise import Group

Check = Callable[[Any], str]


def play(group: Group, program: Program) -> dict[str, str]:
    """Play it as one rank. Returns, with a fault, the errors by step; without one, an error is raised."""
    return Player(group, program).play()


class Player:
    """One rank of a program."""

    def __init__(self, group: Group, program: Program) -> None:
        self.program, self.rank, self.world = program, group.rank, group
        self.parts = program.parts()
        self.bases = [group.dup() for _ in program.threads]
        self.errors: dict[str, str] = {}
        self.failed: list[BaseException] = []

    def play(self) -> dict[str, str]:
        lines = [_Thread(self, number) for number in range(len(self.bases))]
        others = [threading.Thread(target=self._run, args=[line]) for line in lines[1:]]
        for thread in others:
            thread.start()
        try:
            self._run(lines[0])
        finally:
            for thread in others:
                thread.join()
        if self.failed:
            raise self.failed[0]
        if self.program.fault and self.program.fault.kind in ("kill", "abort"):
            self._go_on()
        for base in self.bases:
            base.close()
        for line in lines:
            line.check_dropped()
        return self.errors

    def _run(self, line: _Thread) -> None:
        try:
            line.run()
        except Interrupted:
            if self.program.fault and self.program.fault.kind != "abort":
                raise
            for group in (*self.bases, *line.groups.values()):
                with suppress(rw.RankwiseError):
                    group.abort("it was interrupted")
        except BaseException as error:  # noqa: BLE001 - raised by `play`; the other ranks must not wait for this one
            self.failed.append(error)
            for group in (self.world, *self.bases):
                with suppress(rw.RankwiseError):
                    group.abort(f"rank {self.rank} has failed: {type(error).__name__}: {error}")

    def _go_on(self) -> None:
        """After a loss the survivors make a group of those that are left, which must work."""
        fault = self.program.fault
        assert fault is not None
        if self.world.backend == "gloo" and (fault.kind, fault.rank) == ("kill", 0):
            try:
                self.bases[0].shrink()
            except rw.PeerLostError as error:
                if error.rank == 0 and "which serves the job's store" in str(error):
                    return
                raise
            raise Wrong("a group after the loss of rank 0, without which nobody can meet")
        left = self.program.n - (fault.kind == "kill")
        with self.bases[0].shrink() as new:
            if new.world_size != left or new.all_reduce(1) != left:
                raise Wrong(f"{new.world_size} ranks after shrink, expected {left}")


class _Thread:
    """One thread of a rank."""

    def __init__(self, player: Player, number: int) -> None:
        self.player, self.program, self.rank = player, player.program, player.rank
        self.number = number
        self.groups: dict[int, Group] = {-1 - number: player.bases[number]}
        self.pending: list[tuple[Step, int, str, Any, Check]] = []
        self.last: list[tuple[Step, Check]] = []
        """What is compared once the groups are closed, as its Work was dropped."""

    def run(self) -> None:
        fault = self.program.fault
        mine = fault if fault is not None and fault.rank == self.rank and self.number == 0 else None
        with Victim(mine) as victim:
            for step in self.program.threads[self.number]:
                if mine is not None and mine.number == step.number:
                    victim.begin()
                self.wait_before(step.number)
                if (pause := step.hows[self.rank].pause) > 0:
                    time.sleep(pause / 1e3)
                if step.group in self.groups:
                    self.guarded(step, partial(self.do, step))
                elif members(self.player.parts[step.group], self.rank) is not None:
                    self.player.errors[str(step.number)] = "no group"
            self.wait_before(None)
            victim.end()
        steps = self.program.threads[self.number]
        if any(step.drops for step in steps):
            for number, group in self.groups.items():
                self.guarded(Close(number, number, steps[0].hows, True), group.barrier)
        for number, group in self.groups.items():
            if number >= 0:
                group.close()

    def check_dropped(self) -> None:
        """Compare what dropped Works have written, now that all groups are closed."""
        if self.program.fault is None or self.program.fault.kind == "stop":  # else nobody knows whether they succeeded
            for step, check in self.last:
                self.guarded(step, partial(self.compare, check, None))

    def guarded(self, step: Step, call: Callable[[], object]) -> None:
        """With a fault, an error that is documented is noted, and the rank goes on."""
        try:
            call()
        except Wrong as error:
            raise Wrong(f"seed {self.program.seed}, rank {self.rank}, {step}: {error}") from None
        except rw.RankwiseError as error:
            if self.program.fault is None:
                error.args = (f"at {step}: {error}",)
                raise
            self.player.errors[str(step.number)] = f"{type(error).__name__}: {error}"

    def compare(self, check: Check, got: Any) -> None:
        if text := check(got):
            raise Wrong(text)

    def do(self, step: Step) -> None:
        group = self.groups[step.group]
        match step:
            case Collective():
                self.collective(step, group)
            case Message():
                self.message(step, group)
            case Exchange():
                self.exchange(step, group)
            case Shift():
                self.shift(step, group)
            case Make():
                self.make(step, group)
            case Close():
                if step.fenced:
                    group.barrier()
                del self.groups[step.group]
                group.close()

    # ---- Works ----

    def finish(self, step: Step, wait: int | None, how: How, result: Any, check: Check, *kept: Memory) -> None:
        """Compare a result, now or when the Work that it is has been waited for. kept: what a dropped Work writes."""
        if wait is None:
            self.compare(check, result)
        elif wait == DROPPED:
            self.last += [(step, check)] if kept else []
        else:
            self.pending.append((step, wait, how.finish, result, check))

    def wait_before(self, number: int | None) -> None:
        """Wait for the Works that this step comes after, in any order."""
        due = [entry for entry in self.pending if number is None or entry[1] <= number]
        if not due:
            return
        self.pending = [entry for entry in self.pending if number is not None and entry[1] > number]
        random.Random(f"{self.program.seed} {number} {self.rank}").shuffle(due)
        due.sort(key=lambda entry: entry[1])  # those of a step that was left out
        together = [entry for entry in due if entry[2] == "all"]
        if together and self.program.fault is None:
            self.guarded(together[0][0], partial(rw.wait_all, [entry[3] for entry in together], SOON))
        for step, _, finish, work, check in due:
            self.guarded(step, lambda: self.compare(check, FINISHES[finish](work)))  # noqa: B023

    # ---- the steps ----

    def make(self, step: Make, group: Group) -> None:
        mine = members(step.parts, self.rank)
        made: Group | None
        if step.way == "dup":
            made = group.dup()
        elif step.way == "subgroup":
            ranks = group.ranks
            parts = [part for part in step.parts if set(part) <= set(ranks)]
            first = self.player.bases[0].ranks  # numbers of the world, which a pool may have numbered otherwise
            part = mine or parts[0]
            made = group.subgroup([ranks.index(first[rank]) for rank in part])
        else:
            color = None if mine is None else step.parts.index(mine)
            made = group.split(color, 0 if mine is None else 5 * mine.index(self.rank) - 7)
        if (made is None) != (mine is None):
            raise Wrong(f"got {made}")
        if made is not None and mine is not None:
            self.groups[step.number] = made
            if (made.rank, made.world_size) != (mine.index(self.rank), len(mine)):
                raise Wrong(f"rank {made.rank} of {made.world_size}")

    def collective(self, step: Collective, group: Group) -> None:
        how, name, seed = step.hows[self.rank], step.name, self.program.seed
        size, me = group.world_size, group.rank
        root = step.root % size
        later: dict[str, Any] = {} if how.wait is None else {"async_op": True}
        want = oracle.received(seed, step, size, me)
        if name == "barrier":
            self.finish(step, how.wait, how, group.barrier(**later), lambda got: oracle.differs(got, want, True))
            return
        if name.endswith("_object"):
            self.finish(step, how.wait, how, self.objects(step, group, later), lambda got: _object(got, want, how))
            return
        has_data = name not in oracle.FROM_ROOT or me == root
        in_place = name in oracle.IN_PLACE
        dtype = oracle.dtype_of(step.dtype)
        given = oracle.given(seed, step, size, me) if has_data else None
        x = out = None
        if given is not None:
            x = Memory(given, how.x, group)
        elif in_place and not how.out:
            x = room(step.shape, dtype, how.x, group)
        array = want[0] if isinstance(want, tuple) else want
        if how.out and array is not None:
            later["out"] = (out := room(array.shape, array.dtype, how.out, group)).array
        elif how.out and name in ("reduce", "exscan"):  # unused where there is no result
            assert given is not None
            later["out"] = (out := room(given.shape, dtype, how.out, group)).array
        arguments: list[Any] = [None if x is None else x.array]
        if name in oracle.VECTOR and "gather" not in name:
            arguments.append(oracle.counts(seed, step, size, me) if has_data else None)
        if name in oracle.FROM_ROOT + oracle.TO_ROOT:
            later["src" if name in oracle.FROM_ROOT else "dst"] = root
        if step.op:
            later["op"] = oracle.function if step.op == "function" else step.op
        result = getattr(group, name)(*arguments, **later)
        to = out or (x if in_place else None)
        exact = name not in oracle.REDUCED
        check = partial(_array, step, want, given, x, to, exact, how.wait != DROPPED)
        self.finish(step, how.wait, how, result, check, *([to] if to else []))

    def objects(self, step: Collective, group: Group, later: dict[str, Any]) -> Any:
        size, me = group.world_size, group.rank
        root = step.root % size
        mine = [oracle.thing(self.program.seed, step.number, member, step.shape[0]) for member in range(size)]
        match step.name:
            case "all_gather_object":
                return group.all_gather_object(mine[me], **later)
            case "gather_object":
                return group.gather_object(mine[me], root, **later)
            case "broadcast_object":
                return group.broadcast_object(mine[me] if me == root else None, root, **later)
        return group.scatter_object(mine if me == root else None, root, **later)

    def shift(self, step: Shift, group: Group) -> None:
        how, size, me = step.hows[self.rank], group.world_size, group.rank
        to, source = (me + step.by) % size, (me - step.by) % size
        given, want = (
            oracle.contents(self.program.seed, step.number, each, step.shape, step.dtype) for each in (me, source)
        )
        x, later = Memory(given, how.x, group), {} if how.wait is None else {"async_op": True}
        out = room(want.shape, want.dtype, how.out, group) if how.out else None
        result = group.sendrecv(x.array, to, source, tag=step.tag, out=None if out is None else out.array, **later)
        self.finish(step, how.wait, how, result, partial(_array, step, want, given, x, out, True, True))

    def message(self, step: Message, group: Group) -> None:
        how, size, me, seed = step.hows[self.rank], group.world_size, group.rank, self.program.seed
        source, dest = step.source % size, step.dest % size
        by_object = step.kind == "object"
        if by_object:
            what = oracle.thing(seed, step.number, 0, step.count)
        else:
            what = oracle.contents(seed, step.number, 0, (step.count,), step.dtype)
        receiving = None
        if me == dest and step.wait is not None:
            receiving = self.receive(step, group, source, what)
        if me == source:
            x = None if by_object else Memory(what, how.x, group)
            if how.wait is None and source != dest:
                group.send_object(what, dest, step.tag) if x is None else group.send(x.array, dest, step.tag)
            else:  # to itself, a rank may receive only after it has sent
                start = how.wait if how.wait is not None else step.number + 1
                work = group.isend_object(what, dest, step.tag) if x is None else group.isend(x.array, dest, step.tag)
                self.finish(step, start, how, work, partial(_sent, x, what))
        if me == dest and step.wait is None:
            receiving = self.receive(step, group, source, what)
        if receiving is not None:
            result, check, kept = receiving
            self.finish(step, step.wait, how, result, check, *kept)

    def receive(self, step: Message, group: Group, source: int, what: Any) -> tuple[Any, Check, list[Memory]]:
        """Start to receive, or receive, a message: the result, what compares it, and the memory that it comes to."""
        how, received, tag, start = step.hows[self.rank], step.received, step.tag, step.wait is not None
        wanted = rw.ANY if received == "any source" else source
        if step.kind == "object":
            if start:
                got = group.irecv_object(wanted, tag)
            else:
                got = group.recv_any(tag=tag).data if wanted is rw.ANY else group.recv_object(source, tag)
            work = got if start else None

            def check_object(got: Any) -> str:
                return oracle.differs(got, what, True) or _from(work, source, tag)

            return got, check_object, []
        into: Memory | None = None
        if received == "recv_any":
            message = group.recv_any(source, tag)
            got = message.data
            if (message.source, message.tag) != (source, tag):
                raise Wrong(f"from {message.source} with tag {message.tag}")
        elif received == "probe":
            found = group.probe(rw.ANY, tag, timeout=SOON)
            if found is None or (found.source, found.tag, found.count) != (source, tag, step.count):
                raise Wrong(f"found {found}")
            got = group.recv((found.count,), found.source, found.tag, dtype=found.dtype)
        elif received.endswith("shape"):
            got = (group.irecv if start else group.recv)((step.count,), source, tag, dtype=what.dtype)
        else:
            into = room(what.shape, what.dtype, how.out, group)
            if wanted is rw.ANY and not start:
                got = group.irecv(into.array, wanted, tag).wait()
            else:
                got = (group.irecv if start else group.recv)(into.array, wanted, tag)
        work = got if start else None
        dropped = step.wait == DROPPED

        def check(got: Any) -> str:
            if into is None:
                return oracle.differs(got, what, True) or _from(work, source, tag)
            if not dropped and got is not into.array:
                return f"got {oracle.shown(got)}, not the array that was passed"
            return into.differs(what) or ("" if dropped else _from(work, source, tag))

        return got, check, [] if into is None else [into]

    def exchange(self, step: Exchange, group: Group) -> None:
        size, me = group.world_size, group.rank
        mine = [
            (number, source % size, dest % size, tag, count)
            for number, (source, dest, tag, count) in enumerate(step.messages)
        ]
        sent = [each for each in mine if each[1] == me]
        expected = [each for each in mine if each[2] == me]
        way = step.received[self.rank]

        def body(number: int, count: int) -> Any:
            if step.kind == "object":
                return (number, "x" * count)
            return np.full(count, number, np.int32)

        def start(number: int, dest: int, tag: int, count: int) -> Any:
            if step.kind == "object":
                return group.isend_object(body(number, count), dest, tag)
            return group.isend(body(number, count), dest, tag)

        sending = []
        if way == "batch":
            sends = [(body(number, count), dest, tag) for number, _, dest, tag, count in sent]
            receives = [((count,), source, tag, np.int32) for _, source, _, tag, count in expected]
            found = group.batch(sends, receives)
        else:
            sending = [start(number, dest, tag, count) for number, _, dest, tag, count in sent]
            rng = random.Random(f"{self.program.seed} {step.number} {self.rank}")
            expected, found = _receive_all(step, group, way, expected, rng)
        for (number, source, _, tag, count), got in zip(expected, found, strict=True):
            if text := oracle.differs(got, body(number, count), True):
                raise Wrong(f"message {number} from {source} with tag {tag}: {text}")
        for work in sending:
            work.wait()
        if step.fenced:
            group.barrier()


def _receive_all(
    step: Exchange, group: Group, way: str, expected: list[Any], rng: random.Random
) -> tuple[list[Any], list[Any]]:
    """Receive what is expected. Returns it in the order in which it came, and what came."""
    is_object = step.kind == "object"
    if way in ("exact", "started"):
        keys = list(dict.fromkeys((source, tag) for _, source, _, tag, _ in expected))
        rng.shuffle(keys)
        order = [each for key in keys for each in expected if (each[1], each[3]) == key]
        found = []
        for _, source, _, tag, count in order:
            if is_object:
                found.append((group.irecv_object if way == "started" else group.recv_object)(source, tag))
            else:
                found.append((group.irecv if way == "started" else group.recv)((count,), source, tag, dtype=np.int32))
        if way == "started":
            found = rw.wait_all(found, SOON)
        return order, found
    left, order, found = list(expected), [], []
    keys = [(rw.ANY if way != "any tag" else source, rw.ANY if way != "any source" else tag)
            for _, source, _, tag, _ in expected]  # fmt: skip
    rng.shuffle(keys)
    for wanted, tag in keys:
        if is_object:
            work = group.irecv_object(wanted, tag)
            found.append(work.wait())
            came = work.source, work.tag
        else:
            message = group.recv_any(wanted, tag, dtype=np.int32 if rng.random() < 0.5 else None)
            found.append(message.data)
            came = message.source, message.tag
        first = next((each for each in left if (each[1], each[3]) == came), None)
        if first is None:
            raise Wrong(f"got a message from {came[0]} with tag {came[1]}, left are {left}")
        left.remove(first)
        order.append(first)
    return order, found


# ---- what is compared ----


def _array(
    step: Step, want: Any, given: Any, x: Memory | None, to: Memory | None, exact: bool, returned: bool, got: Any
) -> str:
    """to: where the result must be, if the call says so. returned: got is what the call has returned."""
    array = want[0] if isinstance(want, tuple) else want
    if returned:
        if isinstance(want, tuple) and not (isinstance(got, tuple) and len(got) == 2):
            return f"got {oracle.shown(got)}"
        mine = got[0] if isinstance(want, tuple) else got
        if to is not None and array is not None and mine is not to.array:
            return f"got {oracle.shown(mine)}, which is not the array that was passed"
        if text := oracle.differs(got, want, exact):
            return text
    if to is not None and array is not None and (text := to.differs(array, exact)):
        return text
    if x is not None and given is not None and (x is not to or array is None) and (text := x.differs(given)):
        return f"what was passed has changed: {text}"
    return ""


def _object(got: Any, want: Any, how: How) -> str:
    return oracle.differs(got, want, True)


def _sent(x: Memory | None, what: Any, got: Any) -> str:
    if x is not None and (text := x.differs(what)):
        return f"what was sent has changed: {text}"
    return oracle.differs(got, None, True)


def _from(work: Any, source: int, tag: int) -> str:
    if work is not None and (work.source, work.tag) != (source, tag):
        return f"from {work.source} with tag {work.tag}"
    return ""


def main(backend: str, folder: str) -> None:
    with open(Path(folder, "programs"), "rb") as file:
        programs = pickle.load(file)
    with rw.init(backend, timeout=SOON) as group, open(Path(folder, f"rank-{group.rank}"), "w") as report:
        for program in programs:
            begun = time.monotonic()
            try:
                found = {"errors": play(group, program)}
            except BaseException as error:
                found = {"failed": f"{type(error).__name__}: {error}"}  # type: ignore[dict-item]
                raise
            finally:
                report.write(json.dumps({"seed": program.seed, "took": time.monotonic() - begun, **found}) + "\n")
                report.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
