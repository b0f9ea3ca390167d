"""What a rank of a trial runs: `rank.py FIFO SEED PLACE ARGS`. The places are where a fault may find it."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import rankwise as rw
from rankwise._native import SegmentView

sys.path.insert(0, str(Path(__file__).parents[1]))

from stress.schedule import run_schedule

BIG = (64 << 20) // 4  # float32 of 64 MiB


class Rank:
    """This rank: its number, its own randomness and its way to report."""

    def __init__(self, fifo: str, seed: str) -> None:
        self.number = int(os.environ["RANKWISE_RANK"])
        self.n = int(os.environ["RANKWISE_WORLD_SIZE"])
        self.common = random.Random(seed)  # the same on every rank
        self.own = random.Random(f"{seed}/{self.number}")
        self._fifo = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)

    def report(self, what: str, **facts: Any) -> None:
        line = {"what": what, "rank": self.number, "at": time.monotonic(), "pid": os.getpid(), **facts}
        os.write(self._fifo, json.dumps(line).encode() + b"\n")  # in one piece, as it is less than PIPE_BUF

    def report_error(self, error: BaseException, what: str = "error") -> None:
        at = time.monotonic()
        while isinstance(error, RuntimeError) and error.__cause__ is not None:
            error = error.__cause__  # the schedule says at which step
        facts = {name: getattr(error, name, None) for name in ("rank", "how", "operation", "sequence", "missing")}
        process = getattr(error, "pid", None)
        lost = facts.pop("rank")
        self.report(what, at=at, type=type(error).__name__, text=str(error)[:2500], lost=lost, process=process, **facts)


def all_reduce(rank: Rank, group: rw.Group) -> None:
    x = np.zeros(BIG, np.float32)
    while True:
        group.all_reduce(x)


def barrier(rank: Rank, group: rw.Group) -> None:
    while True:
        if rank.own.random() < 0.3:
            time.sleep(rank.own.uniform(0, 0.002))
        group.barrier()


def send_and_recv(rank: Rank, group: rw.Group) -> None:
    """Messages run round the ring, some larger than what is under way at once."""
    x = np.zeros(1)
    while True:
        x = np.zeros(rank.common.choice((1, 1000, 200_000)))
        if group.rank == 0:
            time.sleep(rank.own.uniform(0, 0.01))
            group.send(x, 1)
            group.recv(x, group.world_size - 1)
        else:
            group.recv(x, group.rank - 1)
            group.send(x, (group.rank + 1) % group.world_size)


def asleep(rank: Rank, group: rw.Group) -> None:
    """All but one sleep on a futex, in a collective or in recv; the one naps in Python."""
    while True:
        awake = rank.common.randrange(group.world_size)
        by_message = rank.common.random() < 0.5
        if group.rank == awake:
            time.sleep(rank.own.uniform(0.02, 0.06))
            for other in range(group.world_size) if by_message else ():
                if other != awake:
                    group.send(1, other)
        elif by_message:
            group.recv((), awake, dtype=np.int64)
        group.all_reduce(np.ones(3))


def polling(rank: Rank, group: rw.Group) -> None:
    """Receives of which neither the source nor the length is known; nothing comes."""
    if group.rank % 2:
        group.recv_any(tag=rw.ANY, dtype=int)
    group.recv_any(tag=rw.ANY)


def in_python(rank: Rank, group: rw.Group) -> None:
    """Mostly in Python code, a few milliseconds at a time."""
    while True:
        end = time.monotonic() + rank.own.uniform(0, 0.02)
        while time.monotonic() < end:
            sum(range(100))
        group.all_reduce(np.ones(100))


def works(rank: Rank, group: rw.Group) -> None:
    """Operations and messages under way on the group's own thread, and waited for later."""
    x = np.zeros((4, 100_000))
    while True:
        under_way = [group.all_reduce(row, async_op=True) for row in x]
        under_way.append(group.isend(x[0, :10].copy(), (group.rank + 1) % group.world_size))
        under_way.append(group.irecv((10,), (group.rank - 1) % group.world_size))
        rw.wait_all(under_way)


def anything(rank: Rank, group: rw.Group) -> None:
    run_schedule(group, 1 << 40, rank.common.randrange(1 << 30))


def init(rank: Rank, group: rw.Group) -> None:
    barrier(rank, group)


def parts(rank: Rank, group: rw.Group) -> None:
    """Two groups of half the ranks each; the failure of one is none of the other's."""
    half = group.split(group.rank % 2)
    assert half is not None
    try:
        while True:
            half.all_reduce(np.ones(1000))
    except rw.PeerLostError as error:
        rank.report_error(error)
        raise


def going_on(rank: Rank, group: rw.Group, fewest: int, timeout: float) -> None:
    """Operations in ever smaller groups, until a group of at most `fewest` ranks has worked for a while."""
    turn, group.timeout = 0, timeout
    while turn < 20 or group.world_size > fewest:
        try:
            x = np.full(rank.common.choice((1, 1_000, 300_000)), group.rank + turn, np.float64)
            group.all_reduce(x)
            assert (x == sum(range(group.world_size)) + turn * group.world_size).all(), "a wrong sum"
            assert group.agree(turn + 1) == turn + 1
            turn += 1
        except (rw.PeerLostError, rw.CollectiveTimeout) as error:
            rank.report_error(error, "lost")
            rank.report("shrinks", ranks=group.ranks)
            smaller = group.shrink()
            group.close(0.0)
            group, turn = smaller, 0
            rank.common = random.Random(len(group.ranks))
    rank.report("went on", ranks=group.ranks)


held: list[rw.Group] = []  # groups that nothing but the interpreter's end closes


def leave_early(rank: Rank, group: rw.Group, victim: int, way: str, status: int) -> None:
    """After some operations one rank ends in its own way, which the others did not expect."""
    held.append(group)
    for _ in range(rank.common.randrange(30)):
        group.all_reduce(np.ones(rank.common.choice((1, 10_000))))
    if group.rank == victim:
        rank.report("leaves")
        if way == "raises":
            raise LookupError("lost my keys")
        if way == "os._exit":
            os._exit(status)
        sys.exit(status)
    barrier(rank, group)


def sums(rank: Rank, group: rw.Group, enough: str) -> None:
    """All_reduces of any size, each checked, until there is a file of the name `enough`."""
    turn = 0
    while group.broadcast(not os.path.exists(enough), 0):
        x = np.full(rank.common.choice((1, 1_000, 100_000, 2_000_000)), group.rank + turn, np.float64)
        group.all_reduce(x)
        assert (x == sum(range(group.world_size)) + turn * group.world_size).all(), "a wrong sum"
        turn += 1
        if turn % 10 == 0:
            rank.report("sums", turn=turn)


def elastic(rank: Rank, group: rw.Group, enough: str, size: int) -> None:
    """Steps that are committed, until there is a file of the name `enough`; each rank checks what it has at the end."""
    x, y = np.zeros(size), np.zeros(3)
    state = rw.elastic.State(arrays={"x": x, "y": y}, objects={"history": []})
    rank.report("finds", commits=state.commits)

    @rw.elastic.run(state)
    def train(group: rw.Group, state: rw.elastic.State) -> None:
        rank.report("resumes", step=state.step)
        assert (x == x[0]).all(), "a torn commit"
        assert y.tolist() == [sum(state.objects["history"]), len(state.objects["history"]), state.step], "a torn commit"
        while group.broadcast(not os.path.exists(enough), 0):
            time.sleep(rank.own.uniform(0, 0.003))
            total = group.all_reduce(float(state.step))
            assert total == state.step * group.world_size, "a wrong sum, or ranks at different steps"
            x[:] += total
            state.objects["history"].append(total)
            y[:] = sum(state.objects["history"]), len(state.objects["history"]), state.step + 1
            state.commit()
            rank.report("commits", step=state.step)

    train()
    rank.report("trained", step=state.step, total=x[0])


def blocked(rank: Rank, group: rw.Group, kept: int, how: str) -> None:
    """All but one rank wait, each forever, for that one, which sleeps."""
    if group.rank == kept:
        rank.report("blocked")
        time.sleep(60)
    calls = {
        "barrier": group.barrier,
        "all_reduce": lambda: group.all_reduce(np.ones(100_000)),
        "recv": lambda: group.recv((3,), kept),
        "wait": lambda: group.all_reduce(np.ones(3), async_op=True).wait(),
        "split": lambda: group.split(0),
        "object": lambda: group.all_gather_object([1, 2]),
    }
    rank.report("blocked")
    calls[how]()


def leave_pending(rank: Rank, group: rw.Group, state: str) -> None:
    """The interpreter ends while something is under way that nobody completes."""
    for _ in range(rank.common.randrange(5)):
        group.all_reduce(np.ones(1000))
    peer = (group.rank + 1) % group.world_size
    if state == "nothing":
        group.all_reduce(np.ones(3), async_op=True).wait()
    elif state in ("irecv", "isend"):
        with suppress(rw.PeerLostError):  # others may have left by now
            group.irecv((3,), peer) if state == "irecv" else group.isend(np.ones(1_000_000), peer)
    elif state == "operation" and group.rank == 0:
        group.all_reduce(np.ones(3), async_op=True)
    elif state == "function":
        begun = threading.Event()

        def function(a: Any, b: Any) -> None:
            begun.set()
            time.sleep(30)

        work = group.all_reduce(np.ones(3), function, async_op=True)
        wait_until(lambda: work.done() or begun.is_set() or bool(group.failed()))  # done() has a thread begin it
    elif state == "thread":
        blocked = rank.common.choice((lambda: group.recv((3,), peer), group.barrier))
        if group.rank == 0:
            in_thread(group, blocked)
    elif state == "busy thread":
        in_thread(group, lambda: barrier(rank, group))
    elif state == "cycle":
        part = group.dup()
        part.me = part
    time.sleep(rank.own.uniform(0, 0.02))  # it ends at any moment of that state
    rank.report("leaves")


def in_thread(group: rw.Group, call: Callable[[], object]) -> None:
    """Start a thread, and wait until it is in a call of the group, or has lost a peer that has left."""
    view = SegmentView(group.comm.shortcuts.segment.fd)
    begun = view.state(group.rank).operations
    thread = threading.Thread(target=quietly, args=(call,), daemon=True)
    thread.start()
    wait_until(lambda: view.state(group.rank).operations > begun or not thread.is_alive())


def wait_until(so: Callable[[], bool]) -> None:
    while not so():
        time.sleep(0.001)


def quietly(call: Callable[[], object]) -> None:
    with suppress(rw.RankwiseError):
        call()


def fork(rank: Rank, group: rw.Group, state: str, way: str) -> None:
    """A child of a rank is none; what it does, and how it ends, does the parent no harm."""
    peer, source = (group.rank + 1) % group.world_size, (group.rank - 1) % group.world_size
    group.all_reduce(np.ones(3), async_op=True).wait()  # threads of the engine exist from here on
    receiving = group.irecv((3,), source)
    under_way = group.all_reduce(np.ones(300_000), async_op=True) if state == "operation" else None
    if state == "busy thread":
        other = group.dup()
        busy = threading.Thread(target=lambda: [other.all_reduce(np.ones(10_000)) for _ in range(300)])
        busy.start()
    with warnings.catch_warnings():
        # From Python 3.12 on; that the engine withstands such a fork is what is tested.
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()
    if child == 0:
        uses = [group.barrier, lambda: group.send(1, 0), lambda: group.split(0)]
        refused = 0
        for use in uses:
            try:
                use()
            except rw.ClosedError:
                refused += 1
        if refused < len(uses):
            os._exit(99)
        with suppress(rw.ClosedError):  # but where it was complete before the fork
            if (receiving.wait() != source).any():
                os._exit(97)
        with suppress(rw.ClosedError):
            if under_way is not None and under_way.wait()[0] != group.world_size:
                os._exit(98)
        if way == "close":
            group.close()
        if way == "del":
            del group, receiving, under_way
            gc.collect()
        if way == "os._exit":
            os._exit(7)
        if way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(7)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (-signal.SIGKILL if way == "kill" else 7), f"the child ended with {status}"
    if under_way is not None:
        assert under_way.wait()[0] == group.world_size
    if state == "busy thread":
        busy.join()
    group.send(np.full(3, float(group.rank)), peer)
    assert (receiving.wait() == source).all()
    assert group.all_reduce(1) == group.world_size
    rank.report("goes on")


PLACES: dict[str, Callable[..., object]] = {
    place.__name__: place
    for place in (
        all_reduce,
        barrier,
        send_and_recv,
        asleep,
        polling,
        in_python,
        works,
        anything,
        init,
        leave_early,
        sums,
        elastic,
        blocked,
        leave_pending,
        fork,
        going_on,
    )
}


def main() -> None:
    fifo, seed, place, args = sys.argv[1:]
    rank = Rank(fifo, seed)
    rank.report("started")
    group = None
    try:
        if place == "init":
            time.sleep(rank.own.uniform(0, 0.03))
        group = rw.init()
        rank.report("ready")
        PLACES[place](rank, group, *json.loads(args))
    except (rw.RankwiseError, KeyboardInterrupt, RuntimeError) as error:
        rank.report_error(error)
        if group is not None and not isinstance(error, KeyboardInterrupt):
            try:
                group.barrier()
            except rw.RankwiseError as again:
                rank.report_error(again, "again")
    rank.report("end")


if __name__ == "__main__":
    main()
