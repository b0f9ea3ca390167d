"""Streams of functions, events, and the group's own stream, at the array level."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankwise as rw
from rankwise.contract.errors import ClosedError, CollectiveTimeout, RankwiseError
from rankwise.group.group import Group
from rankwise.group.streams import BlockingStreamSync
from rankwise.testing import run_ranks

SOON = 20.0  # seconds within which anything must end


def fail(text: str = "on purpose") -> None:
    raise ArithmeticError(text)


def test_functions_run_in_order_on_one_thread() -> None:
    order: list[int] = []
    threads = set()

    def step(i: int) -> int:
        threads.add(threading.get_ident())
        order.append(i)
        return i

    with rw.overlap.Stream() as stream:
        works = [stream.submit(step, i) for i in range(200)]
        assert rw.wait_all(works, SOON) == list(range(200)) == order
        assert len(threads) == 1
        assert threads != {threading.get_ident()}


def test_what_is_no_function_event_or_stream_is_refused() -> None:
    wrong: Any = 3
    event = rw.overlap.Event()
    with rw.init("solo") as group, rw.overlap.Stream() as own:
        for name, calls in {
            "function": [own.submit, lambda wrong: own.submit(wrong, 1)],
            "event": [method for each in (own, group.stream) for method in (each.wait_event, each.record_event)],
            "stream": [own.wait_stream, group.stream.wait_stream, event.record, event.wait],
        }.items():
            for call in calls:
                with pytest.raises(TypeError, match=rf"^{name}=3: expected a.*, got int$"):
                    call(wrong)


def test_submit_takes_arguments_and_returns_at_once() -> None:
    gate = threading.Event()
    with rw.overlap.Stream("mine") as stream:
        blocked = stream.submit(gate.wait, timeout=SOON)
        assert not stream.query()
        assert not blocked.done()
        with pytest.raises(CollectiveTimeout):
            blocked.wait(0.01)
        gate.set()
        assert blocked.wait(SOON) is True
        stream.synchronize(SOON)
        assert stream.query()
        assert repr(stream) == f"<Stream 'mine', handle {stream.handle}>"


def test_works_are_whole_in_a_program_that_opens_no_group() -> None:
    code = """
import rankwise as rw
with rw.overlap.Stream() as stream:
    work = stream.submit(lambda: 3)
    assert isinstance(work, rw.Work)
    assert (work.result(), work.exception()) == (3, None)
    work.add_done_callback(lambda work: print(work.wait()))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=True, stdout=subprocess.PIPE).stdout == b"3\n"


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit, KeyboardInterrupt])
def test_a_work_raises_the_error_of_its_function(error: type[BaseException]) -> None:
    def function() -> None:
        raise error("on purpose")

    with rw.overlap.Stream() as stream:
        failing, after = stream.submit(function), stream.submit(int)
        for _ in range(2):
            with pytest.raises(error, match="on purpose"):
                failing.wait(SOON)
        assert failing.done()
        assert after.wait(SOON) == 0
        stream.synchronize()  # it was told already


def test_synchronize_raises_the_error_of_a_dropped_work() -> None:
    with rw.overlap.Stream() as stream:
        stream.submit(fail, "first")
        stream.submit(fail, "second")
        for text in ("first", "second"):
            with pytest.raises(ArithmeticError, match=text):
                stream.synchronize()
        stream.synchronize()


def test_an_error_that_is_never_raised_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "rankwise"), rw.overlap.Stream("lazy") as stream:
        for i in range(102):
            stream.submit(fail, f"number {i}")
        stream.submit(int).wait(SOON)
        assert not caplog.records
    assert len(caplog.records) == 100, "memory stays bounded"
    assert caplog.records[0].message == "lazy: a function failed, and no wait() raised its error"
    assert "number 0" in caplog.text


def test_a_function_does_not_wait_for_itself() -> None:
    with rw.overlap.Stream() as stream:
        with pytest.raises(RankwiseError, match="cannot wait for work queued behind it"):
            stream.submit(lambda: stream.submit(int).wait()).wait(SOON)
        event = rw.overlap.Event()

        def wait_for_later() -> None:
            stream.record_event(event)
            event.synchronize()

        with pytest.raises(RankwiseError, match="cannot wait for work queued behind it"):
            stream.submit(wait_for_later).wait(SOON)
        stream.submit(stream.synchronize).wait(SOON)  # which is what has run already


def test_events_order_streams() -> None:
    gate, order = threading.Event(), list[str]()
    with rw.overlap.Stream() as first, rw.overlap.Stream() as second:
        first.submit(gate.wait, SOON)
        first.submit(order.append, "first")
        event = first.record_event()
        event.wait(second)
        second.submit(order.append, "second")
        assert not event.query()
        with pytest.raises(CollectiveTimeout):
            event.synchronize(0.01)
        gate.set()
        second.synchronize(SOON)
        assert event.query()
        assert order == ["first", "second"]


def test_a_chain_of_streams() -> None:
    order: list[int] = []
    gate = threading.Event()
    streams = [rw.overlap.Stream() for _ in range(5)]
    streams[0].submit(gate.wait, SOON)
    for turn in range(20):
        for i, stream in enumerate(streams):
            stream.submit(order.append, turn * 5 + i)
            streams[(i + 1) % 5].wait_stream(stream)
    gate.set()
    for stream in streams:
        stream.synchronize(SOON)
        stream.close()
    assert order == list(range(100))


def test_the_calling_thread_is_a_stream() -> None:
    event = rw.overlap.Event()
    assert event.query()
    event.wait()
    event.record()
    assert event.query()
    with rw.overlap.Stream() as stream:
        work = stream.submit(int)
        event.record(stream)
        event.wait()
        assert work.done()


def test_ctrl_c_ends_a_wait() -> None:
    gate = threading.Event()
    with rw.overlap.Stream() as stream:
        stream.submit(gate.wait, SOON)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            stream.synchronize()
        gate.set()


def test_a_function_is_released_after_it_ran() -> None:
    class Thing:
        pass

    with rw.overlap.Stream() as stream:
        thing = Thing()
        gone = weakref.ref(thing)
        work = stream.submit(lambda x: None, thing)
        work.wait(SOON)
        del thing
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize("stuck", [lambda gate: gate.wait(SOON), lambda gate: None])
def test_close_is_bounded_and_logged(
    stuck: Callable[[threading.Event], object], caplog: pytest.LogCaptureFixture
) -> None:
    """With a function that does not end, and with an event that is not reached."""
    gate = threading.Event()
    other, stream = rw.overlap.Stream("other"), rw.overlap.Stream("closing")
    other.submit(gate.wait, SOON)
    running = stream.submit(stuck, gate)
    stream.wait_stream(other)
    queued = stream.submit(int)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "rankwise"):
        stream.close(0.1)
        stream.close()
    assert time.monotonic() - start < 20
    assert [r.message[:47] for r in caplog.records] == ["closing closing: work was still queued after 0."]
    with pytest.raises(ClosedError):
        queued.wait(SOON)
    with pytest.raises(ClosedError):
        stream.submit(int)
    gate.set()
    running.wait(SOON)
    other.close()


def test_close_waits_for_short_functions() -> None:
    stream = rw.overlap.Stream()
    works = [stream.submit(pow, 2, i) for i in range(50)]
    stream.close()
    assert [work.wait() for work in works] == [2**i for i in range(50)]


def test_a_dropped_stream_is_closed() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = threads()
    for _ in range(20):
        rw.overlap.Stream().submit(int)
    gc.collect()
    end = time.monotonic() + SOON
    while threads() > before and time.monotonic() < end:
        time.sleep(0.05)  # an idle thread is kept for a moment, for the next stream
    assert threads() <= before


def test_a_stream_dropped_by_its_own_function() -> None:
    done = threading.Event()

    class Owner:
        def __init__(self) -> None:
            self.stream = rw.overlap.Stream()

        def work(self) -> None:
            del self.stream
            gc.collect()
            done.set()

    owner = Owner()
    owner.stream.submit(owner.work)
    del owner
    assert done.wait(SOON)


def test_many_threads_submit() -> None:
    with rw.overlap.Stream() as stream:
        counts = [0] * 8

        def add(i: int) -> None:
            counts[i] += 1

        def submit(i: int) -> None:
            for _ in range(200):
                stream.submit(add, i)

        submitters = [threading.Thread(target=submit, args=(i,)) for i in range(8)]
        for thread in submitters:
            thread.start()
        for thread in submitters:
            thread.join(SOON)
        stream.synchronize(SOON)
        assert counts == [200] * 8


AT_EXIT = {
    "a function that sleeps": "s.submit(time.sleep, 1000)",
    "a function that computes": "s.submit(lambda: [None for _ in iter(int, 1)])",
    "an event never reached": "t = rw.overlap.Stream(); t.submit(threading.Event().wait); "
    "s.wait_stream(t); s.submit(int)",
    "a group's wait for an event": "s.submit(threading.Event().wait); group.stream.wait_stream(s); "
    "work = group.barrier(async_op=True)",
    "a function on the group's stream": "work = group.comm.start_call(threading.Event().wait)",
    "all in a cycle": "s.me = s; s.submit(time.sleep, 1000); group.stream.wait_stream(s); s.wait_stream(group.stream)",
}


@pytest.mark.slow
@pytest.mark.parametrize("queued", AT_EXIT)
def test_the_program_ends(queued: str) -> None:
    """With queued work that never ends, the program ends in bounded time, successfully, and with a logged line."""
    code = f"""
import threading, time
import rankwise as rw
group = rw.init()
s = rw.overlap.Stream()
begun = time.monotonic()
{AT_EXIT[queued]}
time.sleep(0.05)
"""
    start = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "closing " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
    assert time.monotonic() - start < 30


def test_a_forked_child_has_no_streams() -> None:
    code = """
import os, threading, time
import rankwise as rw
gate = threading.Event()
group = rw.init()
stream, event = rw.overlap.Stream(), rw.overlap.Event()
group.barrier(async_op=True).wait()
stream.submit(gate.wait)
event.record(stream)
if os.fork() == 0:
    for call in (lambda: stream.submit(int), lambda: event.record(stream), lambda: group.stream.wait_event(event)):
        try:
            call()
            os._exit(1)
        except rw.ClosedError:
            pass
    own = rw.overlap.Stream()
    ok = own.submit(int).wait(10) == 0
    stream.close()
    del stream, group
    own.close()
    os._exit(0 if ok else 2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
gate.set()
event.synchronize(10)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_a_fork_while_a_stream_begins_a_function_does_not_hang() -> None:
    code = """
import os, random, signal, time
import rankwise as rw
def give_up(*_):
    os.kill(child, signal.SIGKILL)
signal.signal(signal.SIGALRM, give_up)
streams = [rw.overlap.Stream() for _ in range(8)]
for _ in range(1000):
    works = [stream.submit(int) for stream in streams]
    until = time.perf_counter() + random.uniform(0, 1e-4)
    while time.perf_counter() < until:
        pass
    child = os.fork()
    if child == 0:
        os._exit(0)
    signal.alarm(20)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    signal.alarm(0)
    for work in works:
        work.wait(10)
"""
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def training(group: Group) -> list[float]:
    """The same program with and without streams of the backend: three steps of x = sum(x + rank) - 1."""
    x = np.zeros(8)
    with rw.overlap.Stream() as compute:
        for _ in range(3):
            compute.submit(np.add, x, group.rank, out=x)
            group.stream.wait_stream(compute)
            group.all_reduce(x, async_op=True)
            compute.wait_stream(group.stream)
            compute.submit(np.subtract, x, 1, out=x)
        group.stream.synchronize()
        compute.synchronize(SOON)
    return [float(number) for number in x]


def test_a_backend_without_streams_gives_the_same_results() -> None:
    def rank(group: Group) -> None:
        with_streams = training(group)
        start = type(group.comm).__mro__[1].start
        group.comm.start = lambda *args, keep: start(group.comm, *args, keep=keep)  # type: ignore[method-assign]
        group.comm.stream_sync = None
        del group.stream
        assert isinstance(group.stream.ops, BlockingStreamSync)
        assert training(group) == with_streams

    run_ranks(rank, 3)


def test_without_streams_a_wait_is_bounded_too() -> None:
    def rank(group: Group) -> None:
        group.comm.stream_sync = None
        group.timeout = 0.1
        gate = threading.Event()
        with rw.overlap.Stream() as compute:
            compute.submit(gate.wait, SOON)
            with pytest.raises(CollectiveTimeout):
                group.stream.wait_stream(compute)
            gate.set()

    run_ranks(rank, 1)
