"""TracedCommunicator around backends that write no trace: what the trace of their job shows of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rankwise import DType, Group, MismatchError, PeerLostError, ReduceOp, _native
from rankwise.backends.composed.traced import TracedCommunicator
from rankwise.backends.native import threads
from rankwise.backends.registry import Opener
from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.contract.message import ANY
from rankwise.observe.trace_file import Trace
from rankwise.testing import check_backend, run_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))
from test_outside_backend import open_table


def traced(n: int, inner: Opener = open_table) -> tuple[Opener, _native.SegmentView]:
    """A backend of n threads that is traced, and what its trace shows."""
    segment = _native.Segment.create(n)

    def open_traced(job: Job, timeout: float) -> Communicator:
        return TracedCommunicator.in_segment(inner(job, timeout), segment.fd)

    return open_traced, _native.SegmentView(segment.fd)


def engine(n: int) -> Opener:
    """The native engine, under another segment than the trace's: it has messages from any rank, and may fail."""
    segment = _native.Segment.create(n)
    return lambda job, timeout: threads.connect(segment, job.rank, timeout)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (None, "'world.0'"),
        ("tp", "'tp'"),
        ("größer", "'gr??er'"),
        ("\n" + "long" * 20, "'?" + ("long" * 20)[:55] + "'"),
    ],
)
def test_a_groups_name_is_in_the_trace(name: str | None, shown: str) -> None:
    backend, view = traced(1)

    def body(group: Group) -> None:
        with group.split(0, name=name) as part:
            part.barrier()

    run_ranks(body, 1, backend=backend)
    last = view.operations(0)[-1]
    assert repr(last) == f"<Operation barrier #2 of group {shown}>"


def test_a_group_is_shown_by_its_number_once_256_others_were_made_after_it() -> None:
    segment = _native.Segment.create(1)
    writer, view = _native.TraceWriter(segment.fd, 0), _native.SegmentView(segment.fd)
    for number in (3, 259):
        writer.name_group(number, f"the {number}th")
        writer.begin("barrier", 3, 1, 0).end()
        writer.begin("barrier", 259, 1, 0).end()
    assert [one.group_name for one in view.operations(0)] == ["3", "'the 259th'"] * 2


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_backend(traced(3)[0], 3, timeout=60)
    assert report.ok, report.failures[:10]


def test_operations_of_every_rank() -> None:
    backend, view = traced(2)

    def body(group: Group) -> None:
        x = np.ones(3, np.float32)
        group.all_reduce(x, op="max")
        group.broadcast(x, src=1)
        group.all_reduce(x, async_op=True).wait()
        part = group.split(0 if group.rank == 0 else None)
        both = group.dup()
        both.barrier()
        group.send(x, 1, tag=5) if group.rank == 0 else group.recv(x, 0, tag=5)
        for each in (part, both):
            if each is not None:
                each.close()

    before = time.time_ns()
    run_ranks(body, 2, backend=backend)
    for rank in range(2):
        found = view.operations(rank)
        world = [(op.name, op.sequence) for op in found if op.group == 0 and op.sequence]
        names = ["all_reduce", "broadcast", "all_reduce", "split", "split"]
        assert world == [(name, number + 1) for number, name in enumerate(names)]
        reduced, sent = (op for op in found if op.sequence in (1, 2) and op.group == 0)
        assert (reduced.dtype, reduced.op, reduced.root, reduced.bytes) == ("float32", "max", None, 12)
        assert (sent.dtype, sent.op, sent.root, sent.tag) == ("float32", None, 1, None)
        message = next(op for op in found if op.peer is not None)
        assert (message.name, message.peer) == (("send", 1), ("recv", 0))[rank]
        assert (message.tag, message.bytes, message.sequence) == (5, 12, 0)
        for op in found:
            assert (op.failed, op.background) == (False, False)
            assert op.end is not None
            assert before - 1_000_000 <= op.begin <= op.end <= time.time_ns() + 1_000_000
        assert view.state(rank).bytes == sum(op.bytes for op in found)
    barriers = [[op.group for op in view.operations(rank) if op.name == "barrier"] for rank in range(2)]
    assert len(barriers[0]) == 1
    assert barriers[0] == barriers[1], "the ranks of a group number it differently"
    assert barriers[0] != [0]


def test_a_rank_that_waits_is_seen() -> None:
    backend, view = traced(2)
    seen = threading.Event()

    def body(group: Group) -> None:
        if group.rank == 0:
            group.all_reduce(np.ones(100))
            return
        while not view.state(0).inside:
            time.sleep(0.001)
        state = view.state(0)
        assert (state.joined, state.pid) == (True, os.getpid())
        assert state.description.startswith("in all_reduce #1 for ")
        assert not view.state(1).inside
        seen.set()
        group.all_reduce(np.ones(100))
        assert view.state(1).description.endswith(", last was all_reduce #1")

    run_ranks(body, 2, backend=backend)
    assert seen.is_set()


def test_what_nobody_waits_for_yet_is_in_the_background() -> None:
    backend, view = traced(1, engine(1))

    def body(group: Group) -> None:
        receiving = group.irecv((3,), ANY, ANY)
        assert [(op.name, op.peer, op.end, op.background) for op in view.operations(0)][1:] == [
            ("recv", -1, None, True)
        ]
        assert not view.state(0).inside
        group.send(np.ones(3), 0, tag=8)
        assert receiving.wait().tolist() == [1.0, 1.0, 1.0]
        (receive,) = (op for op in view.operations(0) if op.name == "recv")
        assert (receive.peer, receive.tag, receive.end is None, receive.background) == (0, 8, False, False)

    run_ranks(body, 1, backend=backend)


def test_what_failed_is_marked() -> None:
    backend, view = traced(2, engine(2))

    def body(group: Group) -> None:
        group.barrier()
        with pytest.raises(MismatchError):
            group.all_reduce(np.ones(3 + group.rank))

    run_ranks(body, 2, backend=backend)
    for rank in range(2):
        assert [(op.name, op.failed) for op in view.operations(rank)] == [
            ("init", False),
            ("barrier", False),
            ("all_reduce", True),
        ]


def test_operations_that_are_launched_end_with_sync() -> None:
    inner, n = engine(1), 1000

    def open_launching(job: Job, timeout: float) -> Communicator:
        comm = inner(job, timeout)
        comm.blocking = False
        return comm

    backend, view = traced(1, open_launching)

    def body(group: Group) -> None:
        x = np.ones(4)
        comm = group.comm
        under_way = 0
        for _ in range(n):  # a program that never calls sync leaves room in the trace
            comm.all_reduce(x.ctypes.data, 4, DType.F64, ReduceOp.SUM)
            under_way = max(under_way, sum(op.end is None for op in view.operations(0)[-100:]))
        assert 1 < under_way < 100
        comm.sync()
        assert all(op.end is not None for op in view.operations(0))
        assert view.operations(0)[-1].sequence == n

    run_ranks(body, 1, backend=backend)


def test_a_forked_child_writes_nothing() -> None:
    backend, view = traced(1)

    def body(group: Group) -> None:
        group.barrier()
        pid = os.fork()
        if pid == 0:
            group.comm.barrier()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert [op.name for op in view.operations(0)] == ["init", "barrier"]

    run_ranks(body, 1, backend=backend)


# Rank 1 comes last to the second all_reduce: the others are in it when it begins.
PROGRAM = """
import os, sys, time
import numpy as np, rankwise as rw
from rankwise.observe.jobs import jobs_of
group = rw.init()
group.all_reduce(np.ones(2000))
if group.rank == 1:
    here = jobs_of(os.getpid())[0]  # the launcher's; an engine may have memory of its own
    while not all(rank.state.inside for rank in here.ranks() if rank.rank != 1):
        time.sleep(0.01)
    assert {rank.rank for rank in here.ranks() if rank.behind} == {1}
    time.sleep(0.3)
group.all_reduce(np.ones(3000))
part = group.split(0)
part.barrier()
if group.rank == 2 and "die" in sys.argv:
    os._exit(5)  # at once: the launcher is to see it end before the ranks that lose it
group.barrier()
"""


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.slow), "outside"])
def test_a_job_of_rankwise_run(tmp_path: Path, backend: str) -> None:
    if backend == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
    done = run(tmp_path, backend)
    assert done.returncode == 0, done.stderr
    trace = Trace.read(tmp_path / "t.json")
    for rank in trace.ranks:
        names = [(op.name, op.sequence) for op in rank.operations if op.sequence and not op.group]
        assert names == [("all_reduce", 1), ("all_reduce", 2), ("split", 3), ("barrier", 4)]
        assert [(op.name, op.sequence) for op in rank.operations if op.group][-1] == ("barrier", 2)
    shown = rankwise("trace", "t.json", folder=tmp_path).stdout
    first = next(line for line in shown.splitlines() if line.endswith("in all_reduce #2"))
    assert first.split()[0] == "1"
    assert re.search(r"^all_reduce float64 sum  23 KiB +3 .* rank 1$", shown, re.MULTILINE)


@pytest.mark.slow  # three processes import torch
def test_hierarchical_on_one_host_has_the_trace_of_shm(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="gloo comes with torch")
    done = run(tmp_path, "hierarchical")
    assert done.returncode == 0, done.stderr
    for rank in Trace.read(tmp_path / "t.json").ranks:
        names = [op.name for op in rank.operations if op.sequence and not op.group]
        assert names == ["init", "all_reduce", "all_reduce", "split", "barrier"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "outside"])
def test_the_launcher_says_where_a_rank_ended(tmp_path: Path, backend: str) -> None:
    if backend == "gloo":
        pytest.importorskip("torch", reason="gloo comes with torch")
    done = run(tmp_path, backend, "die")
    assert done.returncode == 5
    assert re.search(r"rank 2 \(pid \d+\) exited with status 5 after barrier #2 of group 'world.0';", done.stderr), (
        done.stderr
    )


# A backend of another package: shared memory of its own, of which it writes no trace into the job's.
OUTSIDE = """
from dataclasses import replace
from rankwise.backends.native import shm

def open(job, timeout):
    comm = shm.open_communicator(replace(job, segment_fd=None, id=f"outside {job.secret.hex()}"), timeout)
    comm.traced = False
    return comm
"""


def run(folder: Path, backend: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The program on 3 ranks."""
    (folder / "program.py").write_text(PROGRAM)
    info = folder / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rankwise.backends]\noutside = outside:open\n")
    (folder / "outside.py").write_text(OUTSIDE)
    return rankwise("run", "-n", "3", "--backend", backend, "--trace", "t.json", "program.py", *words, folder=folder)


def rankwise(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "rankwise", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_what_survivors_do_is_traced() -> None:
    backend, view = traced(2, engine(2))

    def body(group: Group) -> None:
        group.abort("had enough") if group.rank == 0 else None
        with pytest.raises(PeerLostError) as caught:
            group.barrier()
        assert (caught.value.rank, caught.value.how) == (0, "aborted the group: had enough")
        assert group.agree(3) == 3
        assert group.shrink().all_reduce(1) == 2

    run_ranks(body, 2, backend=backend)
    for rank in range(2):
        names = [operation.name for operation in view.operations(rank)]
        assert [name for name in names if name in ("agree", "shrink")] == ["agree", "shrink"], names
