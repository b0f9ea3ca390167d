"""The lock that serialises the calls of a communicator in Python."""

import signal
import threading
from types import SimpleNamespace

import pytest

from rankwise._native import CallLock


class Comm:
    """The part of a communicator that CallLock needs."""

    def refused(self):
        return ValueError("refused")

    def failing(self, error):
        if isinstance(error, KeyError):
            raise LookupError("in other words") from error


def new_lock(other=None):
    return CallLock(other, Comm.refused, Comm.failing)


def is_free(lock):
    """Whether another thread could take the lock."""

    def take():
        taken.append(lock.acquire(0.01))
        if taken[0]:
            lock.release()

    taken = []
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return taken[0]


def test_run_returns_the_result_and_counts_the_call():
    lock = new_lock()
    assert lock.run(Comm(), ("sum", 3), sum, ([1, 2],)) == 3
    assert (lock.call, lock.inside, lock.sequence) == (("sum", 3), False, 1)


def test_the_current_call_is_visible():
    lock = new_lock()
    assert lock.run(Comm(), ("peek",), lambda: (lock.call, lock.inside, lock.sequence), ()) == (("peek",), True, 1)


def test_a_refused_call_is_not_made():
    comm, lock, made = Comm(), new_lock(), []
    lock.refuses = True
    with pytest.raises(ValueError, match="refused"):
        lock.run(comm, ("call",), made.append, (1,))
    assert (made, lock.sequence) == ([], 0)
    assert is_free(lock)


def test_errors_are_raised_as_they_are_or_replaced():
    lock = new_lock()
    with pytest.raises(ZeroDivisionError):
        lock.run(Comm(), ("divide",), lambda: 1 / 0, ())
    with pytest.raises(LookupError, match="in other words") as caught:
        lock.run(Comm(), ("look up",), {}.__getitem__, (1,))
    assert isinstance(caught.value.__cause__, KeyError)
    assert not lock.inside
    assert is_free(lock)


@pytest.mark.parametrize("shared", [False, True])
def test_calls_are_serialised(shared):
    first = new_lock()
    second = new_lock(first) if shared else first
    inside, most = SimpleNamespace(now=0), []
    pause = threading.Event()

    def call():
        inside.now += 1
        most.append(inside.now)
        pause.wait(0.001)  # lets the other threads run
        inside.now -= 1

    def calls(lock):
        for _ in range(10):
            lock.run(Comm(), ("call",), call, ())

    threads = [threading.Thread(target=calls, args=(lock,)) for lock in (first, second, first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 30


def test_acquire_gives_up_at_its_timeout():
    lock = new_lock()
    with lock:
        assert not is_free(lock)
    assert is_free(lock)


@pytest.mark.parametrize("shared", [False, True])
def test_the_thread_that_holds_the_lock_may_lock_it_again(shared):
    lock = new_lock()
    other = new_lock(lock) if shared else lock
    assert not lock.held
    with lock:
        assert other.held
        assert other.run(Comm(), ("sum",), sum, ([1, 2],)) == 3
        assert other.acquire(0)
        other.release()
        assert lock.held
        assert not is_free(lock)
    assert not lock.held
    assert is_free(other)


def test_a_signal_ends_the_wait_for_the_lock():
    lock, taken, over = new_lock(), threading.Event(), threading.Event()
    waiting = SimpleNamespace(now=False)

    def hold():
        with lock:
            taken.set()
            over.wait()

    def wait():
        waiting.now = True
        lock.run(Comm(), ("call",), int, ())

    def interrupt(_signum, _frame):
        if waiting.now:
            waiting.now = False
            raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        thread.start()
        taken.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # again and again, until this thread waits
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)
