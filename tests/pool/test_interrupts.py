"""`rankwise.Pool`: Ctrl-C in a call on all ranks and in a task."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import rankwise as rw
from pool_calls import keep, kept, total
from rankwise.pool import wire
from rankwise.pool.serving import Server

RANKS = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(RANKS, timeout=60) as pool:
        pool.run(nothing)  # imports this file, which takes the ranks longer than `interrupt_soon`
        yield pool


def nothing() -> None: ...


def interrupt_soon() -> None:
    """Ctrl-C, a moment after the call that follows has begun."""
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def waits_for_ever() -> None:
    group = rw.init()
    group.recv((1,), 1) if group.rank == 0 else group.barrier()


@pytest.mark.parametrize("fn", [waits_for_ever, lambda: time.sleep(100)])
def test_an_interrupt_ends_the_call_and_keeps_the_ranks(pool: rw.Pool, fn: Callable[[], None]) -> None:
    pool.run(keep, 9)
    pids = pool.run(os.getpid)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        pool.run(fn)
    assert pool.run(total) == [3.0] * RANKS
    assert pool.run(kept) == [(9, rank) for rank in range(RANKS)]
    assert pool.run(os.getpid) == pids
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_the_tasks_that_are_waited_for(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    for waiting in (
        lambda: pool.submit(time.sleep, 100).result(),
        lambda: list(pool.map(time.sleep, [100] * 10)),
    ):
        interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            waiting()
    assert pool.run(os.getpid) == pids


def test_an_interrupt_reaches_a_call_that_was_received_and_has_not_begun() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = Server(lambda: None)
    with ours, theirs, server.interruptible(theirs):
        for interrupted in (True, False):  # the second interrupt comes between two calls
            wire.send(ours, wire.TASK, 0, [b"\0\0" + pickle.dumps((time.sleep, (0.01,), {}, False))])
            kind, _, _, parts = server.receive(theirs) or pytest.fail("no message")
            if interrupted:
                signal.raise_signal(signal.SIGINT)
            assert server.answer(kind, parts)[0] == (wire.ERROR if interrupted else wire.RESULT)
            with pytest.raises(BlockingIOError):
                server.receive(theirs)
            signal.raise_signal(signal.SIGINT)


def ignores_interrupts() -> None:
    while True:
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            continue


@pytest.mark.slow  # the second must come when the first has been noticed, and not with it
def test_a_second_interrupt_kills_the_ranks(pool: rw.Pool) -> None:
    pids = pool.run(os.getpid)
    interrupt_soon()
    threading.Timer(0.8, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        pool.run(ignores_interrupts)
    assert pool.run(total) == [3.0] * RANKS
    assert not set(pids) & set(pool.run(os.getpid))
