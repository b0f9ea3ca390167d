"""The state of the ranks, read from their segment by another process."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

import numpy as np
import pytest

from rankwise import DType, Group, MismatchError, _native
from rankwise.backends.native import threads
from rankwise.testing import run_ranks


def own_view() -> _native.SegmentView:
    """The segment of this process's ranks, found and opened as another process would do it."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:rankwise "):
                continue
            opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        except OSError:
            continue
        try:
            return _native.SegmentView(opened)
        finally:
            os.close(opened)
    raise AssertionError("this process has no segment")


def test_operations_of_every_rank() -> None:
    def body(group: Group) -> None:
        before = time.time_ns()
        x = np.ones(3, np.float32)
        group.all_reduce(x, op="max")
        group.broadcast(x, src=1)
        part = group.split(0)
        assert part is not None
        part.barrier()
        part.close()
        group.send(x, 1, tag=5) if group.rank == 0 else group.recv(x, 0, tag=5)
        group.barrier()
        view = own_view()
        assert view.world_size == 2
        for rank in range(2):
            found = view.operations(rank)
            found = found[max(i for i, op in enumerate(found) if op.op == "max") :]
            names = [(op.name, op.group, op.sequence) for op in found]
            number = found[0].sequence
            assert names[:3] == [("all_reduce", 0, number), ("broadcast", 0, number + 1), ("split", 0, number + 2)]
            assert [name for name in names if name[1]][-1][::2] == ("barrier", 1)
            reduced, sent = found[0], found[1]
            assert (reduced.dtype, reduced.op, reduced.root, reduced.bytes) == ("float32", "max", None, 12)
            assert (sent.dtype, sent.op, sent.root, sent.tag) == ("float32", None, 1, None)
            message = next(op for op in found if op.peer is not None)
            assert (message.name, message.peer) == (("send", 1), ("recv", 0))[rank]
            assert (message.tag, message.bytes, message.sequence) == (5, 12, 0)
            for op in found:
                assert not op.failed
                assert rank != group.rank or before - 1_000_000 <= op.begin
                assert op.end is None or op.begin <= op.end <= time.time_ns() + 1_000_000
        group.barrier()

    run_ranks(body, 2, backend="shm", timeout=20)


def test_a_waiting_rank_is_visible_from_outside() -> None:
    def body(group: Group) -> None:
        if group.rank == 0:
            group.all_reduce(np.ones(100))
            return
        view = own_view()
        end = time.monotonic() + 20
        while not (view.state(0).inside and view.state(0).waited > 0) and time.monotonic() < end:
            time.sleep(0.001)
        state = view.state(0)
        assert state.inside
        assert state.operation is not None
        assert (state.operation.name, state.operation.end, state.operation.bytes) == ("all_reduce", None, 800)
        assert state.description.startswith(f"in all_reduce #{state.operation.sequence} for ")
        assert state.since > 0
        assert (state.joined, state.ended, state.exit_status) == (True, False, None)
        assert state.pid not in (0, os.getpid())
        mine = view.state(1)
        assert not mine.inside
        assert mine.description.startswith("outside any collective for ")
        group.all_reduce(np.ones(100))
        assert view.state(1).description.endswith(f", last was all_reduce #{state.operation.sequence}")

    run_ranks(body, 2, backend="shm", timeout=20)


def test_failed_operations_are_marked() -> None:
    segment = _native.Segment.create(1)
    with threads.connect(segment, 0, 5.0) as comm:
        x = np.ones(4)
        receiving = comm.recv(x.ctypes.data, 4, 0, 0)  # type: ignore[arg-type]  # float64 by its number
        view = _native.SegmentView(segment.fd)
        assert [(op.name, op.end, op.background) for op in view.operations(0)][-1:] == [("recv", None, True)]
        comm.send(x.ctypes.data, 3, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(MismatchError):
            receiving.wait()
        assert {op.name: op.failed for op in view.operations(0)} == {"init": False, "recv": True, "send": False}
    assert view.state(0).bytes == 24


def test_parts_of_operations_that_another_communicator_runs() -> None:
    segment = _native.Segment.create(1, node=1, nodes=3)
    comm = segment.join(0, 5.0, False, part=True)
    view, writer = _native.SegmentView(segment.fd), _native.TraceWriter(segment.fd, 0)
    whole = writer.begin("all_reduce", 0, 1, 24)
    x = np.ones(1000)
    comm.broadcast(x.ctypes.data, 1000, DType.F64, 0)
    assert view.state(0).description.startswith("in all_reduce #1 for ")
    whole.end()
    comm.barrier()
    assert view.state(0).description.endswith("last was all_reduce #1")
    assert view.state(0).bytes == 24
    found = [(op.name, op.group, op.part) for op in view.operations(0) if op.name != "init"]
    assert found == [("all_reduce", 0, False), ("broadcast", 2, True), ("barrier", 2, True)]
    part = comm.split(0, 0)
    assert part is not None
    part.barrier()
    assert view.operations(0)[-1].group == 5, "another node may give this number"
    assert writer.new_group() == 8
    assert view.operations(0)[-1].part
    part.close(1.0)
    comm.close(1.0)


def test_a_rank_whose_operations_are_all_parts() -> None:
    segment = _native.Segment.create(1)
    comm = segment.join(0, 5.0, False, part=True)
    comm.barrier()
    assert _native.SegmentView(segment.fd).state(0).description.endswith("last was barrier #1")
    comm.close(1.0)


def test_nodes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="node: 2 given, expected 0 to 1, because there are 2"):
        _native.Segment.create(1, 2, 2)


def test_other_files_are_not_segments() -> None:
    with open("/proc/self/cmdline", "rb") as file, pytest.raises(ValueError, match="is not a rankwise segment"):
        _native.SegmentView(file.fileno())
    segment = _native.Segment.create(2)
    with pytest.raises(ValueError, match="rank: 3 given"):
        _native.SegmentView(segment.fd).state(3)


@pytest.mark.parametrize(("written", "shown"), [(b"0.0.9\0", "0.0.9"), (b"\x1b]0;" * 4, "?]0;?]0;?]0;?]0;")])
@pytest.mark.parametrize("enter", [_native.Segment.attach, _native.SegmentView])
def test_segments_of_another_release_are_refused(enter: Callable[[int], object], written: bytes, shown: str) -> None:
    segment = _native.Segment.create(2)
    enter(segment.fd)
    os.pwrite(segment.fd, written, 8)
    why = f"is a segment of rankwise {shown}, and this process runs rankwise {_native.version}: expected the same"
    with pytest.raises(ValueError, match=re.escape(why)):
        enter(segment.fd)
