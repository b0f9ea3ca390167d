"""The faults of test_table.py, tried one after the other on four ranks of two pretended hosts, or of one for `shm`.

    python cells.py BACKEND/FAULT ...

Each prints a line of JSON: what each rank reports that lives. The ranks are forked from this process, which imports
torch once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

import rankwise as rw

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
from pretended_hosts import PretendedHosts

shared: list[Any] = []  # a counter and a lock, on a rank that uses them
NEVER = 600.0  # seconds: a timeout longer than the test lasts, so that it ends only if the ranks learn of the fault
Step = Callable[[rw.Group], object]


def die(group: rw.Group) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def all_reduce(group: rw.Group) -> None:
    group.all_reduce(np.ones(4))


def recv(group: rw.Group) -> None:
    group.recv(np.zeros(4), 3)


def recv_from_any(group: rw.Group) -> None:
    group.irecv(np.zeros(4), rw.ANY).wait()


def recv_object(group: rw.Group) -> None:
    group.recv_any()


def probe(group: rw.Group) -> None:
    while group.probe(3, tag=rw.ANY) is None:
        pass


def all_reduces(group: rw.Group) -> None:
    for number in itertools.count():
        assert group.all_reduce(number) == group.world_size * number


def be_interrupted(group: rw.Group) -> None:
    """A signal handler raises an exception in an all_reduce that has begun; then this rank makes the next one."""

    def handler(signum: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_name != "_locked":
            frame = frame.f_back
        if frame is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise ZeroDivisionError

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.0123)
    with suppress(ZeroDivisionError):
        all_reduces(group)
    all_reduce(group)


def recv_in_vain(group: rw.Group) -> None:
    with group.timeout_of(1):
        recv(group)


def count(group: rw.Group) -> None:
    while True:
        shared[0].next()


def take_the_lock(group: rw.Group) -> None:
    while True:
        with shared[1]:
            pass


def send(group: rw.Group) -> None:
    """Until it fails: a rank that closes takes messages in for a while, and their sends are complete."""
    while True:
        group.send(np.zeros(100_000), 3)


def close(group: rw.Group) -> None:
    """Before a message is received, or one that was sent to this rank."""
    group.isend(np.zeros(100_000), 2, 1)
    group.close(0.1)


def idle(group: rw.Group) -> None:
    """Make no call."""


FAULTS: dict[str, tuple[Step, Step, Step]] = {
    "death, found in a collective": (die, all_reduce, all_reduce),
    "death, found in a message": (die, recv, all_reduce),
    "death, found in a probe": (die, probe, all_reduce),
    "death, found by receives from any rank": (die, recv_from_any, recv_from_any),
    "death, found by receives of any length": (die, recv_object, recv_object),
    "death of the store, found by a counter": (count, count, count),
    "death of the store, found by a lock": (take_the_lock, take_the_lock, take_the_lock),
    "store that is stopped, found by a counter": (count, count, count),
    "store that cannot be reached": (idle, idle, idle),
    "exception in a collective": (be_interrupted, all_reduces, all_reduces),
    "group that a rank closes too early, found by a receive": (close, recv, all_reduce),
    "group that a rank closes too early, found by a send": (close, send, all_reduce),
    "message that does not come": (idle, idle, recv_in_vain),
}
"""What rank 3, the other rank of its host, and the ranks of the other host do."""


def report(group: Any, step: Callable[[Any], object]) -> list[Any]:
    """The error of this step, and whom it names."""
    try:
        step(group)
    except rw.RankwiseError as error:
        failure = error.failure
        return [type(error).__name__, *failure.to_blame] if "{" not in str(error) else [str(error)]
    return []


def survivors(group: rw.Group) -> int:
    """How many ranks go on."""
    with group.shrink() as smaller:
        return int(smaller.all_reduce(1))


def body_of(backend: str, fault: str) -> Callable[[int], Iterator[Any]]:
    victim, neighbour, others = FAULTS[fault]

    def body(rank: int) -> Iterator[Any]:
        if "reached" in fault:
            yield report(None, lambda _: rw.init(backend, timeout=10))
            return
        group = rw.init(backend, timeout=NEVER)
        assert group.backend == backend
        if "store" in fault:
            with group.timeout_of(10 if "stopped" in fault else NEVER):
                group = group.dup()
            shared[:] = group.counter(), group.lock()
        group.barrier()
        yield "ready"
        found = report(group, (others, others, neighbour, victim)[rank])
        yield [*found, survivors(group)] if victim is die else found

    return body


def serve_store() -> tuple[int, int]:
    """A process that serves the job's store: its id, and the port."""
    source, target = os.pipe()
    pid = os.fork()
    if pid:
        return pid, int(os.read(source, 10))
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(target, b"%d" % store.port)
    while True:
        signal.pause()


def tried(backend: str, fault: str) -> list[Any]:
    hosts = (1, 4) if backend == "shm" else (2, 2)
    with PretendedHosts(*hosts, body_of(backend, fault)) as ranks:
        pid, port = serve_store()
        try:
            if "reached" in fault:
                ranks.start(1)  # no process listens there
                return list(ranks.values().values())
            ranks.start(port)
            assert set(ranks.values().values()) == {"ready"}
            if "store" in fault:
                os.kill(pid, signal.SIGSTOP if "stopped" in fault else signal.SIGKILL)
            ranks.go_on()
            return list(ranks.values(dead=[3] if FAULTS[fault][0] is die else []).values())
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    for cell in sys.argv[1:]:
        backend, _, fault = cell.partition("/")
        print(json.dumps(tried(backend, fault)), flush=True)
