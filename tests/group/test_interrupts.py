"""Exceptions at any moment of a call, as Ctrl-C or another signal handler raises them."""

from __future__ import annotations

import dis
import gc
import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.shortcuts import Shortcuts
from rankwise.group.objects import exchange_objects
from rankwise.testing import run_ranks

LIBRARY = str(Path(rw.__file__).parent)
FREED, SENT = 7.0, 3.0
LARGE = 1 << 17  # elements of a message that must wait for its receiver

Array = np.ndarray[Any, Any]


class Interruption(BaseException):
    """What the signal handler raises."""


class Interrupted:
    """Within it, Interruption is raised in the library's Python code, where a signal handler runs for the step-th time.

    Python runs handlers where a function begins, after a call of native code, and in loops.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self._before = ""  # the instruction before

    def __enter__(self) -> None:
        sys.settrace(self._enter)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        sys.settrace(None)
        return isinstance(error, Interruption)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(LIBRARY):
            return None
        frame.f_trace_opcodes = True
        self._before = "CALL"
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if self._before.startswith("CALL") or instruction.startswith("JUMP_BACKWARD"):
                self._left -= 1
                if self._left == 0:
                    raise Interruption
            self._before = instruction
        elif event != "line":
            self._before = ""  # a handler runs neither after a return to Python code nor after an exception
        return self._step


class Watched:
    """Arrays whose memory outlives them, so that a write after their end can be seen, and does no harm."""

    def __init__(self) -> None:
        self._memory: list[tuple[Array, weakref.ref[Array]]] = []

    def array(self, *shape: int, content: float = 0.0) -> Array:
        memory = np.full(shape or (4,), content)
        array = memory[:]
        self._memory.append((memory, weakref.ref(array)))
        return array

    def mark_freed(self) -> None:
        """Mark the memory of the arrays that nobody holds any more."""
        self._freed = [memory for memory, array in self._memory if array() is None]
        for memory in self._freed:
            memory[:] = FREED

    def check_freed(self) -> None:
        for memory in self._freed:
            assert (memory == FREED).all(), f"written after it was freed: {memory}"


@pytest.fixture
def group() -> Iterator[rw.Group]:
    """A group of one rank, which sends messages to itself."""
    with rw.init(backend="solo") as group:
        yield group


def interrupt_at_every_step(call: Callable[[int], bool]) -> None:
    """call(step) for 1, 2, ... until it returns False, because it was complete before that step."""
    call(0)  # without an interruption: from Python 3.12 on, the first function that is traced shows no instructions
    step = 1
    while call(step):
        step += 1
    assert step > 2, "the call was not followed into the library"


RECEIVES: dict[str, Callable[[rw.Group, Watched], Any]] = {
    "irecv": lambda group, watched: group.irecv(watched.array(), 0),
    "sendrecv": lambda group, watched: group.sendrecv(np.zeros(4), None, 0, out=watched.array(), async_op=True),
    "batch": lambda group, watched: group.batch([], [(watched.array(), 0), (watched.array(), 0)], async_op=True),
}


@pytest.mark.parametrize("name", RECEIVES)
def test_an_interrupted_receive_writes_to_no_freed_memory(group: rw.Group, name: str) -> None:
    def call(step: int) -> bool:
        watched, works = Watched(), []
        with Interrupted(step):
            works.append(RECEIVES[name](group, watched))
        for work in works:
            work.cancel()
        complete = bool(works)
        works.clear()
        watched.mark_freed()
        group.send(np.full(4, SENT), 0)
        group.send(np.full(4, SENT), 0)
        watched.check_freed()
        for _ in range(2):  # no cancelled receive has taken one
            group.recv((4,), 0)
        return not complete

    interrupt_at_every_step(call)


def test_a_blocking_receive_that_was_interrupted_takes_no_later_message(group: rw.Group) -> None:
    def call(step: int) -> bool:
        received = []
        group.send(np.full(4, 1.0), 0)
        with Interrupted(step):
            received.append(group.recv((4,), 0))
        group.send(np.full(4, 2.0), 0)
        last = group.recv((4,), 0)
        if last[0] == 1.0:  # the interrupted call had not received it
            assert not received
            last = group.recv((4,), 0)
        assert last.tolist() == [2.0] * 4
        assert group.probe(0, tag=rw.ANY) is None
        return not received

    interrupt_at_every_step(call)


def test_an_interrupted_send_reads_no_freed_memory() -> None:
    more, data = 5, 6

    def rank(group: rw.Group) -> None:
        def sender(step: int) -> bool:
            watched, works = Watched(), []
            with Interrupted(step):
                works.append(group.isend(watched.array(LARGE, content=SENT), 1, data))
            complete = bool(works)
            works.clear()
            watched.mark_freed()
            group.send(np.full(1, float(not complete)), 1, more)
            group.recv((1,), 1, more)
            return not complete

        def receiver(step: int) -> bool:
            again = group.recv((1,), 0, more)[0]
            if group.probe(0, data) is not None:  # the interrupted send had begun
                assert (group.recv((LARGE,), 0, data) == SENT).all()
            group.send(np.zeros(1), 0, more)
            return bool(again)

        interrupt_at_every_step(receiver if group.rank else sender)

    run_ranks(rank, 2, backend="threads")


STARTED: dict[str, Callable[[rw.Group, Watched], Any]] = {
    "all_gather": lambda group, watched: group.all_gather(np.full(4, SENT), out=watched.array(1, 4), async_op=True),
    "gather": lambda group, watched: group.gather(np.full(4, SENT), 0, out=watched.array(1, 4), async_op=True),
    "scatter": lambda group, watched: group.scatter(np.full(4, SENT), 0, out=watched.array(), async_op=True),
    "reduce_scatter": lambda group, watched: group.reduce_scatter(np.full(4, SENT), out=watched.array(), async_op=True),
    "all_to_all": lambda group, watched: group.all_to_all(np.full(4, SENT), out=watched.array(), async_op=True),
}


@pytest.mark.parametrize("name", STARTED)
def test_an_interrupted_start_of_a_collective_writes_to_no_freed_memory(group: rw.Group, name: str) -> None:
    def call(step: int) -> bool:
        watched, works = Watched(), []
        gate = threading.Event()
        first = group.comm.start_call(lambda: assert_set(gate))  # the stream waits, so the operation begins later
        with Interrupted(step):
            works.append(STARTED[name](group, watched))
        complete = bool(works)
        works.clear()
        watched.mark_freed()
        gate.set()
        first.wait(60)
        group.comm.sync()
        watched.check_freed()
        return not complete

    interrupt_at_every_step(call)


SEVERAL: dict[str, Callable[[rw.Group], Any]] = {
    "scatter": lambda group: group.scatter(np.zeros((1, 1, 1, 5)).T if group.rank == 0 else None),
    "scatter_v": lambda group: group.scatter_v(*((np.arange(4.0), [1, 3]) if group.rank == 0 else (None, None))),
    "all_gather_v": lambda group: group.all_gather_v(np.ones(1 + group.rank)),
    "all_to_all_v": lambda group: group.all_to_all_v(np.ones(3), [1, 2]),
    "broadcast_object": lambda group: group.broadcast_object(b"x" * 1000),
    "all_gather_object": lambda group: group.all_gather_object(b"x" * 1000),
    "scatter_object": lambda group: group.scatter_object([b"x" * 1000] * 2),
    "objects for each rank": lambda group: exchange_objects(group, [b"x" * 1000] * 2),
    "maxloc": lambda group: group.all_reduce(np.ones(2), "maxloc"),
    "all_reduce with a function": lambda group: group.all_reduce(np.ones(2), np.hypot),
    "scan with a function": lambda group: group.scan(np.ones(2), np.hypot),
}


@pytest.mark.parametrize(
    ("name", "general"),
    [*((name, True) for name in SEVERAL), *((name, False) for name in SEVERAL if "object" in name)],
)
def test_an_exception_between_the_calls_of_one_operation_fails_the_group(name: str, general: bool) -> None:
    """Rank 0 tries again, as if the operation had not begun. If it had, no rank takes what is left of it for that.

    general: it goes the general path, as on gloo and MPI.
    """

    def rank(group: rw.Group) -> None:
        def call(step: int) -> bool:
            complete = []
            with group.dup() as part:
                if general:
                    part._shortcuts = Shortcuts()
                try:
                    if group.rank == 0:
                        with Interrupted(step):
                            complete.append(SEVERAL[name](part))
                    if not complete:
                        SEVERAL[name](part)
                except rw.PeerLostError:
                    pass
            return bool(group.all_reduce(group.rank == 0 and not complete, "max"))

        interrupt_at_every_step(call)

    run_ranks(rank, 2, backend="threads")


@contextmanager
def alarms() -> Iterator[Callable[[float], None]]:
    """A function that lets a signal handler raise Interruption after so many seconds; 0: not any more."""
    armed = False

    def handler(number: int, frame: object) -> None:
        if armed:
            raise Interruption

    def arm(seconds: float) -> None:
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    gc.collect()
    gc.disable()  # an Interruption in what it calls, such as weak references to earlier groups, would go nowhere
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield arm
    finally:
        arm(0)
        gc.enable()
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", [*RECEIVES, *STARTED])
def test_a_thousand_signals_at_random_moments(group: rw.Group, name: str) -> None:
    moments = random.Random(name)
    interrupted = 0
    with alarms() as arm:
        for _ in range(1000):
            watched = Watched()
            try:
                arm(moments.uniform(1e-6, 60e-6))
                work = (RECEIVES.get(name) or STARTED[name])(group, watched)
                arm(0)
                work.cancel() if name in RECEIVES else work.wait()
                del work
            except Interruption:
                arm(0)
                interrupted += 1
            watched.mark_freed()
            for _ in range(2):
                group.send(np.full(4, SENT), 0)
            watched.check_freed()
            while group.probe(0, tag=rw.ANY) is not None:
                group.recv((4,), 0)
    assert interrupted > 0


def assert_set(gate: threading.Event) -> None:
    assert gate.wait(60)
