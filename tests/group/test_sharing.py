"""What the ranks of a host share: arrays, counters and locks; and how it looks with several hosts."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from leftovers import shared_memory_files
from rankwise.backends.native.communicator import EngineCommunicator
from rankwise.contract.communicator import Communicator
from rankwise.contract.errors import CollectiveTimeout, MismatchError, UnsupportedError
from rankwise.group import sharing
from rankwise.group.group import Group
from rankwise.testing import RanksFailed, run_ranks

both = pytest.mark.parametrize("backend", ["threads", "shm"])
each = pytest.mark.parametrize("memory", ["threads", "shm", "files"])


def run_over(memory: str, n: int, ranks: Callable[[Group], Any]) -> list[Any]:
    """Run the ranks on this backend, or on shm with memory in files, as backends without a segment have it."""
    if memory == "files":
        return run_ranks(partial(in_files, ranks), n, backend="shm")
    return run_ranks(ranks, n, backend="threads" if memory == "threads" else "shm")


def in_files(ranks: Callable[[Group], Any], group: Group) -> Any:
    with mock.patch.object(EngineCommunicator, "host_memory", Communicator.host_memory):
        return ranks(group)


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks 0 and 1 are on one host, the others on another one, as far as sharing goes."""
    monkeypatch.setattr(sharing.Sharing, "_mark", lambda group: bytes([group.rank // 2]))


@each
@pytest.mark.parametrize("n", [1, 3])
def test_share(memory: str, n: int) -> None:
    def ranks(group: Group) -> None:
        for src in range(n):
            for x in (np.arange(24.0).reshape(4, 6)[:, ::2], np.zeros((0, 3), np.int8), np.array(7), 1.5):
                found = group.share(x if group.rank == src else None, src)
                np.testing.assert_array_equal(found, x)
                assert found.dtype == np.asarray(x).dtype
                assert not found.flags.writeable
                with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
                    found.setflags(write=True)
        with pytest.raises(TypeError, match="x: expected an array"):
            alone(group).share("text")

    run_over(memory, n, ranks)


def alone(group: Group) -> Group:
    """A group of this rank alone, where a wrong call harms nobody."""
    return group.split(group.rank)


@each
def test_what_is_written_is_seen_after_a_barrier(memory: str) -> None:
    def ranks(group: Group) -> None:
        field = group.shared_zeros((3, 1000), np.int32)
        for turn in range(1, 20):
            field[group.rank] = turn
            group.barrier()
            assert (field == turn).all()
            group.barrier()
        x = group.shared_zeros((3, 50_000))  # as the array of a collective
        x[group.rank] = group.rank
        group.all_reduce(x[group.rank])
        group.barrier()
        assert (x == 3).all()

    run_over(memory, 3, ranks)


@both
def test_different_shapes(backend: str) -> None:
    def ranks(group: Group) -> None:
        with pytest.raises(
            MismatchError, match=r"rank 0 asks for shape \(2,\), dtype float64, rank 1 for shape \(3,\)"
        ):
            group.shared_zeros(2 + group.rank)
        assert group.shared_zeros(2).tolist() == [0, 0]

    run_ranks(ranks, 2, backend=backend)


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = mock.Mock(return_value=3 << 20)
    monkeypatch.setattr(sharing, "available_memory", asked)

    def ranks(group: Group) -> None:
        with pytest.raises(MemoryError, match="shared_zeros needs 8 MiB of shared memory, 3 MiB are available"):
            group.shared_zeros(1 << 20)
        assert group.shared_zeros(2).tolist() == [0, 0]

    run_ranks(ranks, 2, backend="threads")
    assert asked.call_count == 1  # not for two elements: to ask would take longer than the rest


@pytest.mark.parametrize("memory", ["shm", "files"])
def test_no_room_for_the_content(memory: str) -> None:
    def ranks(group: Group) -> None:
        x = np.arange(3.0) if group.rank == 1 else None
        refused = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with (
            mock.patch.object(os, "pwrite", side_effect=refused),
            pytest.raises(MemoryError, match=r"rank 1 could not write its array into shared memory: .* No space left"),
        ):
            group.share(x, 1)
        with mock.patch.object(os, "pwrite", side_effect=lambda fd, left, at: written(fd, left[:5], at)):
            assert group.share(x, 1).tolist() == [0, 1, 2]

    written = os.pwrite
    run_over(memory, 2, ranks)


@pytest.mark.parametrize("files", [False, True])
@pytest.mark.parametrize("tensor", [False, True])
def test_torch(tensor: bool, files: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    if files:
        monkeypatch.setattr(EngineCommunicator, "host_memory", Communicator.host_memory)

    def ranks(group: Group) -> None:
        given = torch.arange(6.0).reshape(2, 3) if tensor else np.arange(6.0)
        found = group.share(given if group.rank == 1 else None, 1)
        assert isinstance(found, torch.Tensor) == tensor
        if tensor:
            found += group.rank + 1  # private: the other rank sees its own
            group.barrier()
            assert found.tolist() == (given + group.rank + 1).tolist()
            field = group.shared_zeros(3, torch.bfloat16)
            if group.rank == 0:
                field += 2
            group.barrier()
            assert field.tolist() == [2.0, 2.0, 2.0]

    run_ranks(ranks, 2, backend="threads")


def proportional(address: int) -> int:
    """Bytes of the mapping at this address that this process has to answer for, if each sharer counts for its part."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            here = begin <= address < end
        elif here and first == "Pss:":
            return int(line.split()[1]) << 10
    return 0


@pytest.mark.parametrize("memory", ["shm", "files"])
def test_one_copy_of_the_memory(memory: str) -> None:
    size = 64 << 20

    def ranks(group: Group) -> int:
        before = proportional(group.shared_zeros(1).ctypes.data)  # of the whole segment, if it lies there
        table = group.share(np.ones(size, np.uint8) if group.rank == 0 else None)
        assert table.sum() == size
        group.barrier()
        return int(group.all_reduce(proportional(table.ctypes.data) - before))

    for whole in run_over(memory, 4, ranks):
        assert size * 0.99 < whole < size * 1.01


def test_it_outlives_the_group_and_ends_with_the_last_view() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("rankwise-shared")

    def ranks(group: Group) -> None:
        gc.collect()
        before, files = mappings(), shared_memory_files()
        part = group.dup()
        table, field = part.share(np.arange(10_000)), part.shared_zeros(10)
        assert shared_memory_files() == files
        part.close()
        view = table[5000:]
        del table
        gc.collect()
        assert view[0] == 5000
        field[:] = 3
        assert mappings() > before
        del view, field, part
        gc.collect()
        assert mappings() == before

    run_over("files", 2, ranks)  # test_shared_blocks.py has the same for memory in the segment


@both
def test_split_local(backend: str) -> None:
    def ranks(group: Group) -> None:
        with group.split_local() as local:
            assert (local.rank, local.ranks, local.name) == (group.rank, (0, 1, 2), "world.local")

    run_ranks(ranks, 3, backend=backend)


@pytest.mark.usefixtures("two_hosts")
def test_several_hosts() -> None:
    def ranks(group: Group) -> None:
        with group.split_local() as local:
            assert local.ranks == ((0, 1) if group.rank < 2 else (2, 3))
        for src in range(group.world_size):
            for x in (np.arange(100_000) + src, np.zeros(0)):
                np.testing.assert_array_equal(group.share(x if group.rank == src else None, src), x)
        field = group.shared_zeros(3)
        if group.rank == 2:
            field[:] = 5
        group.barrier()
        assert field.tolist() == [0, 0, 0] if group.rank < 2 else [5, 5, 5]
        with pytest.raises(UnsupportedError, match="the ranks are on several hosts"):
            group.counter()

    run_ranks(ranks, 4, backend="threads")


@both
def test_each_number_once(backend: str) -> None:
    def ranks(group: Group) -> None:
        tickets = group.counter()
        drawn = [tickets.next() for _ in range(500)]
        assert drawn == sorted(drawn)
        assert sorted(chain(*group.all_gather_object(drawn))) == list(range(1500))
        group.barrier()
        assert tickets.value == 1500
        group.barrier()
        tickets.add(-500)
        group.barrier()
        assert tickets.value == 0
        other = group.counter()
        assert other.value == 0

    run_ranks(ranks, 3, backend=backend)


@both
def test_a_lock_excludes(backend: str) -> None:
    def ranks(group: Group) -> None:
        lock, total = group.lock(), group.shared_zeros(1, np.int64)

        def count() -> None:
            for turn in range(200):
                with lock:
                    before = int(total[0])
                    if turn % 20 == 0:
                        time.sleep(0.0005)
                    total[0] = before + 1

        threads = [threading.Thread(target=count) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        group.barrier()
        assert total[0] == group.world_size * 400

    run_ranks(ranks, 3, backend=backend)


def test_a_lock_that_is_not_free() -> None:
    def ranks(group: Group) -> None:
        lock = group.lock()
        if group.rank == 0:
            lock.acquire()
        group.barrier()
        if group.rank == 1:
            with pytest.raises(CollectiveTimeout, match=r"not free within 0\.05 s: rank 0 holds it") as caught:
                lock.acquire(timeout=0.05)
            assert caught.value.missing == (0,)
            with pytest.raises(RuntimeError, match="this rank does not hold the lock"):
                lock.release()
            group.barrier()
            with lock:
                assert lock.abandoned_by is None
        else:
            group.barrier()
            lock.release()

    run_ranks(ranks, 2, backend="threads")


@pytest.mark.parametrize("memory", ["shm", "files"])
def test_a_holder_that_dies(memory: str) -> None:
    def ranks(group: Group) -> None:
        lock, field = group.lock(), group.shared_zeros(2)
        if group.rank == 1:
            lock.acquire()
            field[0] = 1
            os.kill(os.getpid(), signal.SIGKILL)
        while not field[0]:
            time.sleep(0.001)
        with lock:
            if not field[1]:
                assert lock.abandoned_by == 1
            field[1] += 1
        with lock:
            assert lock.abandoned_by is None

    with pytest.raises(RanksFailed) as caught:
        run_over(memory, 3, ranks)
    assert set(caught.value.failures) == {1}
