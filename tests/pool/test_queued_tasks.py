"""Tasks that ranks of a pool are sent before they have done the present one, and what travels in files."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import rankwise as rw


@pytest.fixture(scope="module")
def pool() -> Iterator[rw.Pool]:
    with rw.Pool(2, timeout=60) as pool:
        yield pool


@pytest.fixture
def alone() -> Iterator[rw.Pool]:
    with rw.Pool(1, timeout=60) as pool:
        yield pool


def until(file: Path) -> int:
    """Wait for the file; this process's pid."""
    Path(f"{file}.begun").touch()
    while not file.exists():
        time.sleep(0.002)
    return os.getpid()


def note(file: Path, number: int) -> int:
    with file.open("a") as log:
        log.write(f"{number}\n")
    return number


def noted(file: Path) -> list[int]:
    return sorted(map(int, file.read_text().split()))


def has_begun(file: Path) -> bool:
    end = time.monotonic() + 60
    while not Path(f"{file}.begun").exists() and time.monotonic() < end:
        time.sleep(0.002)
    return Path(f"{file}.begun").exists()


def long_amid_short(pool: rw.Pool, folder: Path, short: int = 200) -> tuple[Future[int], list[Future[int]], Path]:
    """A task that lasts until its file exists, and those that were submitted after it; it has begun."""
    before = [pool.submit(note, folder / "log", number) for number in range(short)]
    long = pool.submit(until, folder / "go")
    after = [pool.submit(note, folder / "log", number) for number in range(short, 2 * short)]
    assert [future.result(60) for future in before] == list(range(short))
    assert has_begun(folder / "go")
    return long, after, folder / "go"


def test_no_task_waits_behind_a_long_one_while_another_rank_has_time(pool: rw.Pool, tmp_path: Path) -> None:
    long, after, go = long_amid_short(pool, tmp_path)
    assert [future.result(60) for future in after] == list(range(200, 400))
    assert not long.done()
    go.touch()
    assert long.result(60)
    assert noted(tmp_path / "log") == list(range(400))


def test_what_waits_behind_a_long_task_can_be_cancelled(alone: rw.Pool, tmp_path: Path) -> None:
    long, after, go = long_amid_short(alone, tmp_path)
    assert not long.cancel()
    assert all(future.cancel() for future in after)
    go.touch()
    assert long.result(60)
    assert alone.submit(abs, -1).result(60) == 1
    assert noted(tmp_path / "log") == list(range(200))


def test_a_lost_rank_loses_none_of_the_tasks_that_it_had_not_begun(alone: rw.Pool, tmp_path: Path) -> None:
    pid = alone.submit(os.getpid).result(60)
    long, after, go = long_amid_short(alone, tmp_path)
    os.kill(pid, signal.SIGKILL)
    go.touch()
    assert long.result(60) != pid
    assert [future.result(60) for future in after] == list(range(200, 400))
    assert noted(tmp_path / "log") == list(range(400))


def test_an_interrupt_ends_only_the_task_that_is_waited_for(alone: rw.Pool, tmp_path: Path) -> None:
    long, after, _ = long_amid_short(alone, tmp_path)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        long.result(60)
    assert [future.result(60) for future in after] == list(range(200, 400))
    with pytest.raises(rw.RankwiseError, match="raised KeyboardInterrupt"):
        long.result(60)


def test_a_shutdown_drops_what_waits_behind_a_long_task(tmp_path: Path) -> None:
    pool = rw.Pool(1, timeout=60)
    long, after, go = long_amid_short(pool, tmp_path)
    pool.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in after)
    go.touch()
    assert long.result(60)
    pool.shutdown()
    assert noted(tmp_path / "log") == list(range(200))


def test_a_callback_may_wait_for_another_task(pool: rw.Pool) -> None:
    found: list[int] = []
    tasks = [pool.submit(abs, -number) for number in range(100)]
    tasks[10].add_done_callback(lambda _: found.append(tasks[99].result(60)))
    assert [task.result(60) for task in tasks] == list(range(100))
    assert found == [99]


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.filterwarnings("ignore:threads=True")
def test_a_callback_does_not_wait_for_all_tasks(threads: bool, tmp_path: Path) -> None:
    refused: list[str] = []
    called_back = threading.Event()
    pool = rw.Pool(2, timeout=60, threads=threads)

    def end_the_pool(_: Future[int]) -> None:
        try:
            pool.run(os.getpid)
        except RuntimeError as error:
            refused.append(str(error))
        pool.shutdown()
        called_back.set()

    first, second = pool.submit(until, tmp_path / "first"), pool.submit(until, tmp_path / "second")
    first.add_done_callback(end_the_pool)
    (tmp_path / "first").touch()
    assert called_back.wait(20)
    assert not second.done()
    (tmp_path / "second").touch()
    assert second.result(60)
    pool.shutdown()
    assert refused == ["a future's callback cannot call run, for which it might wait for ever: use a thread"]


def test_results_of_a_thread_while_another_waits_longer(pool: rw.Pool, tmp_path: Path) -> None:
    long = pool.submit(until, tmp_path / "go")
    waiter = threading.Thread(target=long.result, args=(60,))
    waiter.start()
    assert has_begun(tmp_path / "go")
    for number in range(200):
        assert pool.submit(abs, -number).result(60) == number
    (tmp_path / "go").touch()
    waiter.join(60)
    assert long.done()


def doubled(x: np.ndarray) -> tuple[float, np.ndarray]:
    x *= 2
    rw.init().barrier()
    return float(x.sum()), x


def test_each_rank_has_a_large_argument_for_itself(pool: rw.Pool) -> None:
    x = np.ones(1 << 18)
    for total, result in [*pool.run(doubled, x), *pool.run(doubled, x=x)]:
        assert total == 1 << 19
        np.testing.assert_array_equal(result, 2 * x)
        result += 1
    assert x.sum() == 1 << 18


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def keep(x: np.ndarray) -> int:
    rw.local.parts = [*getattr(rw.local, "parts", []), x]
    return descriptors()


def test_large_arguments_and_results_hold_no_descriptors(pool: rw.Pool) -> None:
    pool.run(abs, -1)  # all ranks are there
    before = descriptors()
    held = [pool.submit(keep, np.zeros(1 << 14)).result(60) for _ in range(20)]
    results = [pool.submit(np.ones, 1 << 14).result(60) for _ in range(20)]
    assert descriptors() == before
    assert max(held) - min(held) <= 2  # two ranks, of which one may have opened more than the other
    assert all(result.sum() == 1 << 14 for result in results)


@pytest.mark.parametrize("size", [1 << 10, 1 << 20])
def test_a_map_packs_its_function_once(pool: rw.Pool, size: int) -> None:
    pytest.importorskip("cloudpickle")
    packed: list[int] = []
    x = np.arange(size)

    class Counted:
        def __call__(self, number: int) -> int:
            return int(x[number])

        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            packed.append(1)
            return make, (x,)

    def make(x: np.ndarray) -> Callable[[int], int]:
        return lambda number: int(x[number])

    assert list(pool.map(Counted(), range(100), chunksize=1)) == list(range(100))
    assert list(pool.map(lambda a, b: a - b, range(5), range(4), chunksize=2)) == [0] * 4
    assert len(packed) <= 2  # by pickle, and, if that fails, by cloudpickle


def test_a_module_whose_functions_are_sent_by_value(pool: rw.Pool) -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    module = ModuleType("only_here")
    exec("def answer(x): return 40 + x", vars(module))
    sys.modules["only_here"] = module
    cloudpickle.register_pickle_by_value(module)
    try:
        assert pool.submit(vars(module)["answer"], 2).result(60) == 42
        assert list(pool.map(vars(module)["answer"], [1, 2])) == [41, 42]
    finally:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules["only_here"]
