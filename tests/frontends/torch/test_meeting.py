"""Ranks meet through a store that may hold entries of earlier meetings."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankwise as rw
from rankwise.testing import run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = torch.distributed

LIMIT = 60  # seconds: the meeting takes milliseconds, and where it cannot take place the test fails


def wait_until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not there():
        assert time.monotonic() < end
        time.sleep(0.001)


def meet_and_add(store: Any, rank: int, size: int) -> int:
    """A number that is right only where exactly these ranks met."""
    import numpy as np

    from rankwise.contract.types import DType, ReduceOp
    from rankwise.frontends.torch import meeting

    comm = meeting.meet(store, rank, size, LIMIT)
    x = np.array([1 << (8 * rank)])
    comm.all_reduce(x.ctypes.data, 1, DType.I64, ReduceOp.SUM)
    comm.close()
    return int(x[0])


def test_a_plan_left_in_the_store_is_not_followed(tmp_path: Path) -> None:
    def ranks(group: Any) -> list[int]:
        store = dist.FileStore(str(tmp_path / "store"), 2)
        first = meet_and_add(store, group.rank, 2)
        group.barrier()
        if group.rank == 0:
            time.sleep(0.2)  # rank 1 takes the old call for this meeting's, whose plan is there
        return [first, meet_and_add(store, group.rank, 2)]

    assert run_ranks(ranks, 2) == [[0x101, 0x101]] * 2


def test_a_meeting_that_was_broken_off_is_in_nobodys_way(tmp_path: Path) -> None:
    def ranks(group: Any) -> int:
        store = dist.FileStore(str(tmp_path / "store"), 3)
        if group.rank == 0:
            store.add("call", 1)
        group.barrier()
        if group.rank == 0:
            wait_until(lambda: store.check(["1/1", "1/2"]))
        return meet_and_add(store, group.rank, 3)

    assert run_ranks(ranks, 3) == [0x10101] * 3


@pytest.mark.slow
def test_groups_are_made_again_and_again_by_one_store(tmp_path: Path) -> None:
    def ranks(group: Any) -> None:
        for _ in range(5):
            store = dist.FileStore(str(tmp_path / "store"), 2)
            dist.init_process_group("rankwise", store=store, rank=group.rank, world_size=2)
            part = dist.new_group()
            x = torch.ones(2)
            dist.all_reduce(x)
            dist.all_reduce(x, group=part)
            assert x.tolist() == [4, 4]
            dist.destroy_process_group()

    run_ranks(ranks, 2, backend="shm")


def test_who_did_not_come_is_named(tmp_path: Path) -> None:
    def ranks(group: Any) -> Any:
        from rankwise.contract.errors import CollectiveTimeout
        from rankwise.frontends.torch import meeting

        store = dist.FileStore(str(tmp_path / f"store {group.rank}"), 3)
        if group.rank == 1:
            store.add("call", 1)  # of a rank 0 that is gone
        with pytest.raises(CollectiveTimeout) as caught:
            meeting.meet(store, group.rank, 3, 0.2)
        assert (caught.value.operation, caught.value.limit) == ("init", 0.2)
        return caught.value.missing

    assert run_ranks(ranks, 3) == [(1, 2), (0,), (0,)]


@pytest.mark.slow
def test_a_host_without_an_address_raises_on_every_rank(tmp_path: Path) -> None:
    def ranks(group: Any) -> None:
        from rankwise.frontends.torch import meeting

        store = dist.FileStore(str(tmp_path / "store"), 3)
        text = (
            r"'hierarchical' is not available here: .* cannot resolve the name 'no-such-host\.invalid' .*; set MASTER_"
        )
        with pytest.MonkeyPatch.context() as patch:  # in the rank: its process may be older than this test
            patch.setenv("MASTER_ADDR", "no-such-host.invalid")
            patch.setattr(meeting.locality, "locality", lambda: {"host": f"host {group.rank}"})
            with pytest.raises(rw.BackendUnavailable, match=text):
                meeting.meet(store, group.rank, 3, LIMIT)

    run_ranks(ranks, 3, backend="shm")


def test_nobody_takes_the_port_of_the_ranks_store(tmp_path: Path) -> None:
    """Between hosts, the ranks meet at a store of rank 0, whose port they learn before it serves there."""

    def ranks(group: Any) -> int:
        from rankwise.frontends.torch import meeting

        connect = meeting.connect

        def connect_late(job: Any, *rest: Any) -> Any:
            if group.rank == 0:
                with pytest.raises(OSError, match="Address already in use"):
                    socket.create_server(("", job.master[1]))
            return connect(job, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(meeting.locality, "locality", lambda: {"host": f"host {group.rank}"})
            patch.setattr(meeting, "_address", lambda: "127.0.0.1")
            patch.setattr(meeting, "_fits", lambda *given: False)  # they are not the ranks of a launcher
            patch.setattr(meeting, "connect", connect_late)
            return meet_and_add(dist.FileStore(str(tmp_path / "store"), 2), group.rank, 2)

    assert run_ranks(ranks, 2, backend="shm") == [0x101] * 2


def test_no_memory_for_a_new_group_raises_on_every_rank(tmp_path: Path) -> None:
    class Full:
        def make_subgroup(self, ranks: Any) -> int:
            raise MemoryError("the shared segment needs 9 MiB, 1 MiB are available")

    def ranks(group: Any) -> None:
        from rankwise.frontends.torch import meeting

        store = dist.FileStore(str(tmp_path / "store"), 3)
        parent: Any = Full()
        with pytest.raises(MemoryError, match=r"rank 0 could not make the group: .* needs 9 MiB, 1 MiB are available"):
            meeting.meet(store, group.rank, 3, LIMIT, parent, [0, 1, 2])

    run_ranks(ranks, 3)
