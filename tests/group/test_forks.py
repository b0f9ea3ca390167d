"""A forked child is no rank: it neither hangs nor harms its parent, whatever it does with what the parent made."""

import subprocess
import sys

import pytest

BEGIN = """
import os, signal, sys, threading, time
import numpy as np
import rankwise as rw

def in_child(function):
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            function()
        except rw.ClosedError:
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\\n".encode())
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

WORKS = """
gate = threading.Event()
group = rw.init()
stream = rw.overlap.Stream()
event = rw.overlap.Event()
blocking = stream.submit(gate.wait)
event.record(stream)
group.stream.wait_event(event)
work = group.all_reduce(np.ones(3), async_op=True)
in_child(lambda: group.abort("a child says so"))
for pending in (blocking, work):
    in_child(lambda: (rw.wait_any([pending]), pending.wait()))
    in_child(lambda: [pending.done() or sys.exit("not done"), pending.wait()])
in_child(lambda: [group.stream.synchronize()])
gate.set()
assert work.wait().tolist() == [1] * 3
"""

LOCKS = """
def leave():
    lock.release()

group = rw.init()
lock = group.lock()
with lock:
    in_child(leave)
    in_child(lock.acquire)
"""

POOLS = """
with rw.Pool(1) as pool:
    assert pool.submit(abs, -1).result() == 1
    pool.submit(time.sleep, 1)
    in_child(lambda: pool.submit(abs, -2))
    in_child(lambda: pool.run(abs, -2))
    in_child(lambda: [pool.map(abs, [-2])])
    if (pid := os.fork()) == 0:
        signal.alarm(20)
        sys.exit(0)  # which leaves the block
    assert os.waitpid(pid, 0)[1] == 0
    assert pool.submit(abs, -3).result() == 3
"""

STREAMS = """
def fork():
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        return None
    return os.waitpid(pid, 0)[1]

def start():
    child = subprocess.Popen(["sleep", "20"])
    child.terminate()
    return child.wait()

import subprocess
with rw.overlap.Stream() as stream:
    ran = []
    works = [stream.submit(fork), stream.submit(ran.append, os.getpid()), stream.submit(start)]
    assert [work.wait(30) for work in works] == [0, None, -signal.SIGTERM]
    assert ran == [os.getpid()]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # the idle thread of the stream blocks it too
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1
"""

RANKS = """
def rank(how):
    group = rw.init()
    if group.rank == 0:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            if how == "abort":
                group.abort("a child says so")
            if how == "exit":
                sys.exit(3)
            if how == "error":
                raise KeyError("of the child")
            return "the child's"
        os.waitpid(pid, 0)
    return group.all_reduce(1)

if __name__ == "__main__":
    for threads in (False, True):
        for how in ("return", "exit", "error", "abort"):
            assert rw.spawn(rank, 2, how, threads=threads) == [2, 2], (threads, how)
"""

HANDLERS = """
def rank(leaves):
    def handler(*_):
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            if leaves:
                sys.exit(0)
        else:
            children.append(pid)

    group, me, children = rw.init(), os.getpid(), []
    group.barrier()
    try:
        large = np.zeros(1_000_000)
        zero = (lambda: group.all_reduce(1), lambda: group.recv(large, 1), lambda: group.send(large, 1))
        one = (lambda: group.all_reduce(1), lambda: group.send(large + 1, 0), lambda: group.recv(large, 0))
        for i in range(1, 4):
            if group.rank == 0:
                signal.signal(signal.SIGUSR1, handler)
                threading.Timer(0.2, os.kill, (me, signal.SIGUSR1)).start()
            else:
                time.sleep(0.5)  # rank 0 gets the signal while it waits for this rank
            (one if group.rank else zero)[i - 1]()
            while group.rank == 0 and len(children) < i:  # the signal was late
                time.sleep(0.01)
                if os.getpid() != me:
                    os._exit(0)
    except rw.ClosedError:
        if os.getpid() == me:
            raise
        os._exit(0)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * len(children)
    return len(children), large[0]

if __name__ == "__main__":
    for leaves in (True, False):
        assert rw.spawn(rank, 2, leaves) == [(3, 1), (0, 1)]
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=name)
        for name, program in (
            ("works", WORKS),
            ("locks", LOCKS),
            ("pools", POOLS),
            ("streams", STREAMS),
            ("ranks", RANKS),
            ("signal handlers", HANDLERS),
        )
    ],
)
def test_a_forked_child(program: str, tmp_path: object) -> None:
    path = f"{tmp_path}/program.py"
    with open(path, "w") as file:
        file.write(BEGIN + program)
    ended = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
