"""The text of the errors of a failed group; tests/faults tests that they are raised."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rankwise import ANY, CollectiveTimeout, Group, Mesh, MismatchError, PeerLostError
from rankwise.testing import RanksFailed, run_ranks

BACKENDS = pytest.mark.parametrize("backend", ["threads", "shm"])


def _line(marker: str) -> str:
    """file:line of the line of this file that ends with a comment of this name."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if line.endswith(f'# {marker}'))}"


def _mismatch(world: Group, kind: str) -> MismatchError | None:
    group = world.dup()  # the world goes on, so that its processes serve the next try too
    x = np.ones(5)
    part = group.subgroup([2, 1, 0]) if kind == "subgroup" else group
    assert part is not None
    try:
        if kind == "async":
            work = group.all_reduce(x[group.rank % 2 :], async_op=True)  # started
            work.wait()
        elif kind == "compound":
            group.all_gather_v(x if group.rank != 1 else x.astype(np.int32))  # compound
        elif kind == "library":
            np.apply_along_axis(partial(group.all_reduce, op="sum" if group.rank != 1 else "max"), 0, x)  # applied
        elif part.rank == 1:
            part.all_reduce(x, op="max")  # odd
        else:
            part.all_reduce(x)  # even
    except MismatchError as error:
        return error
    return None


@BACKENDS
@pytest.mark.parametrize(
    ("kind", "places", "mark"),
    [
        ("blocking", ("even", "odd", "even"), "other op"),
        ("subgroup", ("even", "odd", "even"), "other op"),
        ("async", ("started", "started", "started"), "other count"),
        ("compound", ("compound", "compound", "compound"), "other dtype"),
        ("library", ("applied", "applied", "applied"), "other op"),
    ],
)
def test_a_mismatch_shows_every_call_and_call_site(
    backend: str, kind: str, places: tuple[str, str, str], mark: str
) -> None:
    expected = {rank: _line(place) for rank, place in enumerate(places)}
    for _ in range(10):  # until none came when the others had found the difference already
        errors = run_ranks(partial(_mismatch, kind=kind), 3, backend=backend, timeout=20)
        for rank, error in enumerate(errors):
            assert error is not None
            assert error.sites[2 - rank if kind == "subgroup" else rank]
            if kind == "library":
                assert all(re.search(r" \(in numpy/\S+\.py:\d+\)$", site) for site in error.sites.values())
            assert {rank: site.partition(" (in ")[0] for rank, site in error.sites.items()}.items() <= expected.items()
        known = [error for error in errors if error is not None]
        if all(len(error.sites) == 3 and "nothing yet" not in "".join(error.calls.values()) for error in known):
            break
    else:
        raise AssertionError("some rank always came late")
    for error in errors:
        assert error is not None
        assert error.different == (1,)
        for rank, line in enumerate(str(error).splitlines()[1:]):
            assert line.startswith(f"  rank {rank}: {error.calls[rank]}")
            assert error.calls[rank].endswith(f" at {error.sites[rank]}")
            assert line.endswith(f"   <-- {mark}") == (rank == 1)


def _absent(group: Group) -> str:
    part = group.dup()
    group.barrier()  # none is in dup any more
    if group.rank == 2:
        group.barrier()
        return ""
    with pytest.raises(MismatchError) as caught:
        part.all_reduce(np.ones(2 + part.rank))
    group.barrier()
    assert 2 not in caught.value.sites
    return caught.value.calls[2]


@BACKENDS
def test_a_mismatch_names_a_rank_outside_any_call(backend: str) -> None:
    for calls in run_ranks(_absent, 3, backend=backend, timeout=20)[:2]:
        assert "(now in barrier #" in calls or "(now outside any collective" in calls


def _timeout(group: Group) -> CollectiveTimeout | None:
    part = group.dup()
    if group.rank == 1:
        assert group.probe(src=0, tag=ANY, timeout=20) is not None  # which is shown as a receive
        group.recv((1,), 0)
        return None
    with pytest.raises(CollectiveTimeout) as caught, part.timeout_of(0.3):
        part.reduce(np.ones(3))
    assert part.timeout > 1
    group.send(np.ones(1), 1)
    return caught.value


@BACKENDS
def test_a_timeout_says_where_every_rank_is(backend: str) -> None:
    error = run_ranks(_timeout, 2, backend=backend, timeout=20)[0]
    assert error is not None
    assert (error.limit, error.missing, error.operation, error.sequence) == (0.3, (1,), "reduce", 1)
    assert re.match(r"in reduce #1 for \d", error.states[0])
    assert re.match(r"in recv from rank 0 of all ranks for \d", error.states[1])
    assert "in _timeout" in error.stacks[1] if backend == "shm" else error.stacks == {}  # threads are not asked
    headline, first, *_ = str(error).splitlines()
    assert headline == "rank 1 of group 'world.dup' did not reach reduce #1 within the timeout of 0.3 s"
    assert first.startswith("  rank 0: in reduce #1 for ")


def _receive_from_a_stopped_rank(group: Group) -> dict[int, str]:
    pid = group.all_gather(os.getpid())[1]
    if group.rank == 1:
        group.send(group.recv((1,), 0), 0)
        return {}
    time.sleep(0.3)  # until rank 1 is in recv
    os.kill(pid, signal.SIGSTOP)
    try:
        group.send(np.ones(1), 1)
        with pytest.raises(CollectiveTimeout) as caught, group.timeout_of(1):
            group.recv((1,), 1)
    finally:
        os.kill(pid, signal.SIGCONT)
    group.recv((1,), 1)
    assert "deadlock" not in str(caught.value)
    return caught.value.states


@pytest.mark.slow
def test_a_rank_that_was_stopped_before_its_message_came_is_in_no_deadlock() -> None:
    states = run_ranks(_receive_from_a_stopped_rank, 2, backend="shm", timeout=20)[0]
    assert states[1].startswith("in recv from rank 0")


STACKS = """
import ctypes, os, signal, sys, threading, time
import numpy as np
import rankwise as rw

group = rw.init()
pids = group.all_gather(os.getpid())
def sleeps(): time.sleep(60)
def computes():
    while True: sum(range(1000))
def holds(): ctypes.PyDLL(None).usleep(60_000_000)
def stops(): os.kill(os.getpid(), signal.SIGSTOP)
if group.rank == 0:
    group.timeout = 1.5
    try:
        group.all_reduce(np.ones(3))
    except rw.CollectiveTimeout as error:
        for rank, text in sorted(error.stacks.items()):
            words = ("in sleeps", "in computes", "no answer", f"kill -CONT {pids[4]}")
            print(rank, [word for word in words if word in text])
else:
    [sleeps, computes, holds, stops][group.rank - 1]()
"""


@pytest.mark.slow
def test_the_stacks_of_the_missing_ranks(tmp_path: Path) -> None:
    script = tmp_path / "stacks.py"
    script.write_text(STACKS)
    command = [sys.executable, "-m", "rankwise", "run", "-n", "5", "--timeout", "60", str(script)]
    # Rank 0 prints and ends; its end is none of a failure, so the others' sleep is cut short by the test.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().split(" ", 1) for _ in range(4)]
        process.terminate()
        process.wait(30)
    found = {int(rank): text.strip() for rank, text in lines}
    assert re.fullmatch(r"\['kill -CONT \d+'\]", found.pop(4))
    assert found == {1: "['in sleeps']", 2: "['in computes']", 3: "['no answer']"}


def _lost(group: Group) -> None:
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError) as caught:
        group.all_reduce(np.ones(10))
    error = caught.value
    expected = (1, "was killed by SIGKILL", "all_reduce", socket.gethostname())
    assert (error.rank, error.how, error.operation, error.host) == expected
    assert error.sequence > 0
    assert f"rank 1 (pid {error.pid} on {error.host}) was killed by SIGKILL after barrier #" in str(error)
    raise error


def test_a_lost_rank_is_named_in_full() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_lost, 3, backend="shm", timeout=20)
    assert "AssertionError" not in str(caught.value)


def _lost_in_a_grid(group: Group) -> None:
    mesh = Mesh(group, rows=2, columns=2)
    group.barrier()
    if group.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    axis, number = ("columns", 0) if group.rank == 3 else ("rows", 1)
    with pytest.raises(PeerLostError) as caught:
        group.barrier() if group.rank == 1 else mesh.exchange_halo(np.zeros((4, 4)), axis)
    error = caught.value
    if group.rank != 1:
        lost = f"rank 2 (pid {error.pid} on {error.host}, rank {number} of group 'world.{axis}') was killed by SIGKILL"
        assert str(error).startswith(lost)
        assert re.search(rf", while rank {group.rank} was in \w+ of group 'world.{axis}'$", str(error))
        assert (error.rank, error.__context__) == (number, None)
    raise error


def test_a_rank_that_is_lost_in_a_grid_has_its_number_in_the_job() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_lost_in_a_grid, 4, backend="shm", timeout=20)
    assert "AssertionError" not in str(caught.value)


@BACKENDS
def test_compound_calls_of_several_threads(backend: str) -> None:
    run_ranks(_compound, 2, backend=backend, timeout=60)


def _compound(group: Group) -> None:
    calls: list[Callable[[], object]] = [
        lambda: group.all_gather_v(np.arange(3 + group.rank)).tolist() == [0, 1, 2, 0, 1, 2, 3],
        lambda: group.scatter(np.arange(4) if group.rank == 0 else None).tolist() == [[0, 1], [2, 3]][group.rank],
        lambda: (group.scatter(np.arange(4.0), out=np.empty(2)) == [[0, 1], [2, 3]][group.rank]).all(),
        lambda: group.scatter(np.arange(8000.0), out=np.empty(4000))[-1] == [3999, 7999][group.rank],
        lambda: group.all_gather_object({"rank": group.rank}) == [{"rank": 0}, {"rank": 1}],
    ]
    errors: list[BaseException] = []

    def use(call: Callable[[], object]) -> None:
        try:
            for _ in range(100):
                assert call()
        except BaseException as error:  # noqa: BLE001 - shown by the rank's own thread
            errors.append(error)

    for call in calls:
        threads = [threading.Thread(target=use, args=(call,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors[0]
