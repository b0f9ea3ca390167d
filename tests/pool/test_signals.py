"""Signals to a program that has a pool, and to its ranks: SIGTERM twice, and handlers that raise errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

import rankwise as rw
from pool_calls import total

RANKS = 2


@pytest.fixture(scope="module")
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(RANKS, timeout=60) as pool:
        yield pool


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


# ---- SIGTERM twice ----

PROGRAM = """\
import os, signal, sys, time
import rankwise as rw

def wait():
    print(os.getpid(), flush=True)
    time.sleep(1000)

if sys.argv[1] == "handled":
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(7))
with rw.Pool(2) as pool:
    pool.run(wait) if sys.argv[2] == "run" else pool.submit(wait).result()
"""


@pytest.mark.parametrize(("handled", "call"), [(False, "run"), (True, "run"), (True, "submit")])
def test_two_sigterms_end_the_program_and_its_ranks(tmp_path: Path, handled: bool, call: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", "handled" if handled else "", call]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        pids = [int(program.stdout.readline()) for _ in range(RANKS if call == "run" else 1)]
        program.terminate()
        program.terminate()
        while handled and program.poll() is None:  # the handler may have run only once for both
            time.sleep(0.3)
            program.terminate()
        _, errors = program.communicate(timeout=60)
    wait_until(lambda: not any(map(lives, pids)))
    if handled:  # the second may come when Python has begun to end
        assert program.returncode in (7, -signal.SIGTERM)
    else:
        assert (program.returncode, errors) == (-signal.SIGTERM, "")


def waits(mark: Path) -> None:
    """Says that it has begun by a file of this name and its rank."""
    group = rw.init()
    Path(f"{mark}.{group.rank}").touch()
    group.recv((1,), 1 - group.rank)


def begun(mark: Path) -> bool:
    return all(Path(f"{mark}.{rank}").exists() for rank in range(RANKS))


def test_two_sigterms_end_a_rank_which_is_named_and_replaced(pool: rw.Pool, tmp_path: Path) -> None:
    pids = pool.run(os.getpid)

    def terminate() -> None:
        wait_until(lambda: begun(tmp_path / "mark"))
        for _ in range(2):
            os.kill(pids[1], signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(rw.PeerLostError, match="rank 1 was killed by SIGTERM") as caught:
        pool.run(waits, tmp_path / "mark")
    thread.join()
    assert caught.value.rank == 1
    assert pool.run(total) == [float(RANKS)] * RANKS
    first, second = pool.run(os.getpid)
    assert first == pids[0]
    assert second != pids[1]


# ---- handlers that raise errors ----


class TooLate(Exception):
    pass


def waits_for_tasks(thread: int) -> bool:
    stack = [frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]
    return stack[0].co_name in ("_receive", "wait") and any("/rankwise/pool/" in code.co_filename for code in stack)


@pytest.fixture
def alarm() -> Iterator[Callable[[Callable[[], bool]], AbstractContextManager[None]]]:
    """A context in which this thread raises TooLate when it waits for tasks, as soon as something is true."""
    this_thread = threading.get_ident()

    def handler(signum: int, frame: object) -> None:
        raise TooLate

    @contextmanager
    def context(when: Callable[[], bool]) -> Iterator[None]:
        def ring() -> None:
            wait_until(when)
            wait_until(lambda: waits_for_tasks(this_thread))
            os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=ring)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    before = signal.signal(signal.SIGUSR1, handler)
    yield context
    signal.signal(signal.SIGUSR1, before)


def waits_for(file: Path) -> str:
    """Says that it has begun."""
    Path(f"{file}.{rw.init().rank}").touch()
    wait_until(file.exists)
    return "done"


@pytest.mark.filterwarnings("ignore:threads=True")
@pytest.mark.parametrize("threads", [False, True])
def test_a_handler_that_raises_ends_the_wait_for_tasks_and_not_the_tasks(
    alarm: Callable[[Callable[[], bool]], AbstractContextManager[None]], tmp_path: Path, threads: bool
) -> None:
    with rw.Pool(RANKS, timeout=60, threads=threads) as pool:
        pids = pool.run(os.getpid)
        tasks = [pool.submit(waits_for, tmp_path / "first") for _ in range(RANKS)]
        with pytest.raises(TooLate), alarm(lambda: begun(tmp_path / "first")):
            tasks[0].result(60)
        (tmp_path / "first").touch()
        assert [task.result(60) for task in tasks] == ["done"] * RANKS
        with pytest.raises(TooLate), alarm(lambda: begun(tmp_path / "second")):
            list(pool.map(waits_for, [tmp_path / "second"] * RANKS, chunksize=1))
        (tmp_path / "second").touch()
        assert pool.run(total) == [float(RANKS)] * RANKS
        assert pool.run(os.getpid) == pids


def test_a_second_error_of_a_handler_while_the_first_ends_the_wait_leaves_the_pool_at_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with rw.Pool(1, timeout=60) as pool:
        ranks = pool._dealer.ranks
        task = pool.submit(waits_for, tmp_path / "go")
        wait_until((tmp_path / "go.0").exists)
        with monkeypatch.context() as patch:
            patch.setattr(ranks, "_receive", Mock(side_effect=TooLate("first")))
            patch.setattr(ranks, "_pass_on", Mock(side_effect=TooLate("second")))
            with pytest.raises(TooLate, match="second"):
                task.result(60)
        (tmp_path / "go").touch()
        wait_until(task.done)  # received by the pool's thread
        assert pool.run(total) == [1.0]


def raises_in_a_handler(rank: int, mark: Path | None) -> None:
    """On this rank, in the middle of what it computes or, with a mark, of what it receives."""

    def handler(signum: int, frame: object) -> None:
        raise TooLate(f"on rank {rank}")

    group = rw.init()
    if group.rank == rank:
        signal.signal(signal.SIGUSR1, handler)
        if mark is None:
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(60)
    if mark is not None:
        waits(mark)


def test_a_handler_that_raises_on_a_rank_ends_its_call_and_not_the_rank(pool: rw.Pool, tmp_path: Path) -> None:
    pids = pool.run(os.getpid)
    for call in (
        lambda: pool.submit(raises_in_a_handler, 0, None).result(60),
        lambda: pool.run(raises_in_a_handler, 0, None),
    ):
        with pytest.raises(TooLate, match="on rank 0") as caught:
            call()
        assert "os.kill(os.getpid(), signal.SIGUSR1)" in str(caught.value.__cause__)

    def ring() -> None:
        wait_until(lambda: begun(tmp_path / "mark"))
        os.kill(pids[1], signal.SIGUSR1)

    thread = threading.Thread(target=ring)
    thread.start()
    with pytest.raises(TooLate, match="on rank 1"):
        pool.run(raises_in_a_handler, 1, tmp_path / "mark")
    thread.join()
    assert pool.run(total) == [float(RANKS)] * RANKS
    assert pool.run(os.getpid) == pids
