"""The turns of a communicator in Python."""

import signal
import threading
from types import SimpleNamespace

import pytest

from rankwise._native import Turn


class Comm:
    """As much of a communicator as a Turn asks for."""

    def refused(self):
        return ValueError("refused")

    def failing(self, error):
        if isinstance(error, KeyError):
            raise LookupError("in other words") from error


def new_turn(other=None):
    return Turn(other, Comm.refused, Comm.failing)


def test_a_call_gives_its_result_and_counts():
    turn = new_turn()
    assert turn.run(Comm(), ("sum", 3), sum, ([1, 2],)) == 3
    assert (turn.call, turn.inside, turn.sequence) == (("sum", 3), False, 1)


def test_a_call_is_seen_from_outside():
    turn = new_turn()
    assert turn.run(Comm(), ("look",), lambda: (turn.call, turn.inside, turn.sequence), ()) == (("look",), True, 1)


def test_a_refused_call_is_not_made():
    comm, turn, made = Comm(), new_turn(), []
    turn.refuses = True
    with pytest.raises(ValueError, match="refused"):
        turn.run(comm, ("call",), made.append, (1,))
    assert (made, turn.sequence) == ([], 0)
    assert turn.acquire(0)


def test_errors_come_out_as_they_are_or_in_other_words():
    turn = new_turn()
    with pytest.raises(ZeroDivisionError):
        turn.run(Comm(), ("divide",), lambda: 1 / 0, ())
    with pytest.raises(LookupError, match="in other words") as caught:
        turn.run(Comm(), ("look up",), {}.__getitem__, (1,))
    assert isinstance(caught.value.__cause__, KeyError)
    assert not turn.inside
    assert turn.acquire(0)


@pytest.mark.parametrize("shared", [False, True])
def test_one_call_at_a_time(shared):
    first = new_turn()
    second = new_turn(first) if shared else first
    inside, most = SimpleNamespace(now=0), []
    pause = threading.Event()

    def call():
        inside.now += 1
        most.append(inside.now)
        pause.wait(0.001)  # lets the other threads run
        inside.now -= 1

    def calls(turn):
        for _ in range(10):
            turn.run(Comm(), ("call",), call, ())

    threads = [threading.Thread(target=calls, args=(turn,)) for turn in (first, second, first)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 30


def test_acquire_gives_up_in_the_end():
    turn = new_turn()
    with turn:
        assert not turn.acquire(0.01)
    assert turn.acquire(0.01)
    turn.release()


def test_a_signal_ends_the_wait_for_a_turn():
    turn, taken, over = new_turn(), threading.Event(), threading.Event()
    waiting = SimpleNamespace(now=False)

    def hold():
        with turn:
            taken.set()
            over.wait()

    def wait():
        waiting.now = True
        turn.run(Comm(), ("call",), int, ())

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
