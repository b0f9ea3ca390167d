"""`rankwise.spawn`: results, errors, output, and that nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import hostile
import rankwise as rw
from rankwise.launch.local import LocalJob


class OwnError(Exception):
    def __init__(self, what: object, number: int) -> None:
        super().__init__(what, number)
        self.number = number


def total(start: int, *, step: int = 0) -> tuple[int, int, float]:
    group = rw.init()
    return group.rank, group.world_size, float(group.all_reduce(np.full(3, start + step * group.rank, np.float64))[0])


def my_rank() -> int:
    return int(os.environ["RANKWISE_RANK"])


@pytest.mark.parametrize("n", [1, 3])
def test_results_by_rank(n: int) -> None:
    assert rw.spawn(total, n, 5, step=2) == [(rank, n, sum(5.0 + 2 * r for r in range(n))) for rank in range(n)]


def test_the_function_need_not_communicate() -> None:
    assert rw.spawn(my_rank, 4) == [0, 1, 2, 3]


def test_closures_and_large_arrays_are_passed() -> None:
    pytest.importorskip("cloudpickle")
    x = np.arange(1 << 18, dtype=np.float64)

    def scaled() -> np.ndarray:
        return x * (my_rank() + 1)

    for rank, y in enumerate(rw.spawn(scaled, 2)):
        np.testing.assert_array_equal(y, x * (rank + 1))


def one_more_broadcast_on_rank_1() -> None:
    group = rw.init()
    group.barrier()
    if group.rank == 1:
        group.broadcast(np.ones(3), src=1)


def test_a_last_call_without_a_partner_is_an_error() -> None:
    with pytest.raises(rw.MismatchError, match=r"rank 0 after barrier #1, rank 1 after broadcast #2"):
        rw.spawn(one_more_broadcast_on_rank_1, 2)


def fails_on_rank_1() -> None:
    group = rw.init()
    group.barrier()
    if group.rank == 1:
        raise OwnError("rank 1 is the one", 42)
    group.barrier()


def test_the_first_error_is_raised_with_its_traceback() -> None:
    start = time.monotonic()
    with pytest.raises(OwnError, match=r"rank 1 is the one") as caught:
        rw.spawn(fails_on_rank_1, 3)
    assert time.monotonic() - start < 40
    assert caught.value.number == 42
    assert "rank 1:\nTraceback" in str(caught.value.__cause__)
    assert 'raise OwnError("rank 1 is the one", 42)' in str(caught.value.__cause__)


def test_the_traceback_of_a_lambda_names_its_file() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        rw.spawn(lambda: 1 // 0, 1)
    assert f'File "{__file__}"' in str(caught.value.__cause__)
    assert "1 // 0" in str(caught.value.__cause__)


def dies_on_rank_1(how: str) -> None:
    group = rw.init()
    group.barrier()
    if group.rank == 1:
        exec(how)
    group.all_reduce(np.ones(2))


@pytest.mark.parametrize(
    ("deed", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("sys.exit(3)", "exited with status 3"),
        ("os._exit(0)", "exited with status 0"),
    ],
)
def test_a_dead_rank_is_named(deed: str, how: str) -> None:
    with pytest.raises(rw.PeerLostError) as caught:
        rw.spawn(dies_on_rank_1, 3, deed)
    assert (caught.value.rank, caught.value.how) == (1, how)


def test_the_error_says_where_a_rank_died() -> None:
    with pytest.raises(rw.PeerLostError, match=r"rank 1 was killed by SIGKILL after barrier #1") as caught:
        rw.spawn(dies_on_rank_1, 2, "os.kill(os.getpid(), signal.SIGKILL)")
    lost = caught.value
    assert (lost.rank, lost.how, lost.operation, lost.sequence) == (1, "was killed by SIGKILL", "barrier", 1)


def waits_for_a_late_rank() -> None:
    group = rw.init()
    if group.rank == 1:
        time.sleep(20)
    group.barrier()


def test_the_timeout_applies_to_the_operations() -> None:
    with pytest.raises(rw.CollectiveTimeout) as caught:
        rw.spawn(waits_for_a_late_rank, 2, timeout=0.3)
    assert caught.value.limit == 0.3


def gives_a_lock() -> object:
    return threading.Lock()


def raises_what_cannot_travel() -> None:
    raise OwnError(threading.Lock(), 1)


def test_an_unpicklable_result() -> None:
    with pytest.raises(TypeError, match=r"the result of fn, lock, cannot be sent back"):
        rw.spawn(gives_a_lock, 2)


class OnlyThere:
    """Its objects can be pickled, but not unpickled in the process that runs the tests."""

    def __reduce__(self) -> tuple[object, ...]:
        return unpickled, (os.getpid(),)


def unpickled(pid: int) -> None:
    if os.getpid() != pid:
        raise LookupError(f"not in process {pid}")


def returns_it_on_rank_1(fails: int) -> OnlyThere | None:
    if my_rank() == fails:
        raise OwnError("rank 0 fails", 7)
    return OnlyThere() if my_rank() == 1 else None


def test_a_result_that_cannot_be_unpickled_names_its_rank() -> None:
    with pytest.raises(TypeError, match=r"^the result of rank 1 cannot be unpickled .*: LookupError: not in process"):
        rw.spawn(returns_it_on_rank_1, 2, -1)


def test_a_failure_comes_before_a_result_that_cannot_be_unpickled() -> None:
    with pytest.raises(OwnError, match="rank 0 fails"):
        rw.spawn(returns_it_on_rank_1, 2, 0)


def test_an_unpicklable_error_is_raised_as_text() -> None:
    with pytest.raises(rw.RankwiseError, match=r"rank \d raised .*OwnError") as caught:
        rw.spawn(raises_what_cannot_travel, 2)
    assert "raise OwnError(threading.Lock(), 1)" in str(caught.value.__cause__)


def test_whatever_the_methods_of_an_error_or_a_result_raise() -> None:
    """Pool has more of them."""
    with pytest.raises(rw.RankwiseError, match="rank 0 raised Full: disk is full"):
        rw.spawn(hostile.fails, 1, hostile.Full, RuntimeError)
    with pytest.raises(rw.RankwiseError, match="rank 0 raised Unshowable, which cannot be shown"):
        rw.spawn(hostile.fails, 1, hostile.Unshowable, SystemExit)
    with pytest.raises(TypeError, match=r"the result of fn, Full, cannot be sent back: SystemExit"):
        rw.spawn(hostile.gives, 1, hostile.Full, SystemExit)
    with pytest.raises(rw.RankwiseError, match="rank 0 raised Changed: disk is full"):
        rw.spawn(hostile.fails, 1, hostile.Changed, RuntimeError)
    with pytest.raises(TypeError, match=r"fn and its arguments cannot be sent to other processes: RuntimeError"):
        rw.spawn(id, 1, hostile.Full(RuntimeError))


@pytest.mark.parametrize(
    ("fn", "n", "error", "told"),
    [
        (my_rank, 0, ValueError, "n=0: expected a number of ranks of at least 1"),
        (my_rank, -1, ValueError, "n=-1"),
        (my_rank, 1025, ValueError, "n=1025: expected at most 1024 ranks, as many as one host can have"),
        (my_rank, "2", TypeError, "n='2': expected a number of ranks"),
        (my_rank, 2.0, TypeError, "n=2.0"),
        (3, 2, TypeError, "fn=3: expected a function"),
    ],
)
def test_bad_arguments(fn: object, n: object, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        rw.spawn(fn, n)  # type: ignore[arg-type]


def test_bad_timeout() -> None:
    with pytest.raises(ValueError, match=r"timeout=0: expected a number of seconds above 0"):
        rw.spawn(my_rank, 2, timeout=0)


def test_unpicklable_arguments() -> None:
    with pytest.raises(TypeError, match=r"cannot be sent"):
        rw.spawn(my_rank, 2, threading.Lock())


def test_without_cloudpickle_local_functions_are_refused_and_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match=r"pip install 'rankwise\[notebook\]'"):
        rw.spawn(lambda: 1, 2)
    assert rw.spawn(my_rank, 2) == [0, 1]


def prints() -> None:
    print("out", my_rank())
    print("err", my_rank(), file=sys.stderr)


def test_ranks_output_appears_here(capsys: pytest.CaptureFixture[str]) -> None:
    rw.spawn(prints, 2)
    out, err = capsys.readouterr()
    assert sorted(out.splitlines()) == ["out 0", "out 1"]
    assert sorted(err.splitlines()) == ["err 0", "err 1"]


def test_a_function_of_a_script(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    script = tmp_path / "script.py"
    script.write_text(
        "import rankwise as rw\n"
        "class Odd(Exception): pass\n"
        "def f(x):\n"
        "    if rw.init().rank == x: raise Odd(x)\n"
        "    return x\n"
        "print(rw.spawn(f, 2, 5))\n"
        "try:\n"
        "    rw.spawn(f, 2, 1)\n"
        "except Odd as odd:\n"
        "    print('caught', odd)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=150)
    assert (done.stdout, done.stderr, done.returncode) == ("[5, 5]\ncaught 1\n", "", 0)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_caller_is_stopped(tmp_path: Path, signum: int) -> None:
    code = "import sys, rankwise as rw; from test_module import f; rw.spawn(f, 2, sys.argv[1])"
    module = "import os, time\nfrom pathlib import Path\n"
    module += "def f(folder):\n    Path(folder, os.environ['RANKWISE_RANK']).write_text(str(os.getpid()) + '\\n')\n"
    module += "    time.sleep(50)\n"
    (tmp_path / "test_module.py").write_text(module)
    folder = tmp_path / "pids"
    folder.mkdir()
    caller = subprocess.Popen([sys.executable, "-c", code, folder], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 20
    while not (len(pids := [f.read_text() for f in folder.iterdir()]) == 2 and all(p.endswith("\n") for p in pids)):
        assert time.monotonic() < end
        time.sleep(0.01)
    caller.send_signal(signum)
    _, err = caller.communicate(timeout=100)
    assert caller.returncode == -signum
    assert ("KeyboardInterrupt" in err) == (signum == signal.SIGINT)
    end = time.monotonic() + 20
    while any(lives(int(pid)) for pid in pids):
        assert time.monotonic() < end, "ranks live on"
        time.sleep(0.01)


def starts_a_daemon() -> int:
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid


@pytest.mark.parametrize("start", [lambda: rw.spawn(starts_a_daemon, 2), lambda: pool_of_two(starts_a_daemon)])
def test_no_daemon_of_a_rank_remains(start: Callable[[], list[int]]) -> None:
    bystander = subprocess.Popen(["sleep", "600"], start_new_session=True)
    daemons = start()
    assert len({*daemons}) == 2
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in daemons):
        assert time.monotonic() < end, "a daemon lives on"
        time.sleep(0.01)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def pool_of_two(function: Callable[[], int]) -> list[int]:
    with rw.Pool(2) as pool:
        return pool.run(function)


def test_no_descriptor_or_process_remains() -> None:
    def held() -> tuple[list[str], int]:
        return sorted(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    rw.spawn(my_rank, 2)
    before = held()
    for _ in range(3):
        rw.spawn(my_rank, 2)
    with pytest.raises(OwnError):
        rw.spawn(fails_on_rank_1, 2)
    assert held() == before


def test_a_job_that_cannot_start_leaves_nothing() -> None:
    from rankwise.launch.output import OutputMultiplexer

    before = sorted(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError), LocalJob(["/nowhere"], 2, OutputMultiplexer(None, None)):
        pass
    assert sorted(os.listdir("/proc/self/fd")) == before
