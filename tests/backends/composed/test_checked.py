"""CheckedCommunicator around another package's backend, which does not compare calls."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rankwise import Group, MismatchError, PeerLostError, UnsupportedError, _native
from rankwise.backends.composed.checked import CheckedCommunicator
from rankwise.backends.native import threads
from rankwise.contract.communicator import Communicator
from rankwise.contract.job import Job
from rankwise.testing import check_backend, run_ranks

sys.path.insert(0, str(Path(__file__).parents[2] / "conformance"))
from test_outside_backend import open_table

OUTSIDE = str(Path(__file__).parents[2] / "conformance")


def open_checked(job: Job, timeout: float) -> Communicator:
    return CheckedCommunicator(open_table(job, timeout))


@pytest.mark.slow  # tests/conformance/test_outside_backend.py runs the same cases on the backend inside
def test_it_conforms() -> None:
    report = check_backend(open_checked, 3, timeout=60)
    assert report.ok, report.failures[:10]


@pytest.mark.parametrize("size", [3, 10_000])
@pytest.mark.parametrize(
    "other",
    [
        lambda group, x: group.all_reduce(x[1:]),
        lambda group, x: group.all_reduce(x, "max"),
        lambda group, x: group.broadcast(x),
        lambda group, x: group.split(0),
        lambda group, x: group.all_reduce(x.reshape(1, -1)),
    ],
    ids=["count", "op", "operation", "split", "shape"],
)
def test_a_difference_is_found_by_every_rank(other: Callable[[Group, object], object], size: int) -> None:
    def body(group: Group) -> list[str]:
        x = np.full(size, group.rank + 1.0)
        with pytest.raises(MismatchError) as caught:
            other(group, x) if group.rank == 1 else group.all_reduce(x)
        assert (x == group.rank + 1.0).all(), "its array was changed by a refused call"
        assert sorted(caught.value.calls) == [0, 1, 2]
        with pytest.raises(MismatchError):
            group.barrier()
        with pytest.raises(MismatchError):
            group.send(x, group.rank)
        return [str(caught.value)]

    assert len({text for texts in run_ranks(body, 3, backend=open_checked) for text in texts}) == 1


def test_split_groups_are_checked_too() -> None:
    def body(group: Group) -> None:
        part = group.dup()
        assert isinstance(part.comm, CheckedCommunicator)
        with pytest.raises(MismatchError):
            part.all_reduce(np.ones(2 + group.rank))
        assert group.all_reduce(1) == 2, "the failure of one group is none of another"

    run_ranks(body, 2, backend=open_checked)


@pytest.mark.parametrize("check", ["1", ""])
def test_init_wraps_an_outside_backend_on_request(tmp_path: Path, check: str) -> None:
    info = tmp_path / "outside-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rankwise.backends]\ntable = test_outside_backend:open_table\n")
    path = os.pathsep.join([str(tmp_path), OUTSIDE, os.environ.get("PYTHONPATH", "")])
    code = "import rankwise as rw; print(type(rw.init('table').comm).__name__)"
    environment = {**os.environ, "PYTHONPATH": path, "RANKWISE_CHECK": check}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == ("CheckedCommunicator" if check else "TableCommunicator"), ran.stderr


@pytest.mark.slow
def test_the_survivors_shrink() -> None:
    segment = _native.Segment.create(3)

    def open_engine(job: Job, timeout: float) -> Communicator:
        return CheckedCommunicator(threads.connect(segment, job.rank, timeout))

    def body(group: Group) -> None:
        part = group.dup()
        if group.rank == 0:
            part.abort("had enough")
        with pytest.raises(PeerLostError) as caught:
            part.barrier()
        assert (caught.value.rank, caught.value.how) == (0, "aborted the group: had enough")
        assert (part.failed(), part.agree(5)) == ({}, 5)
        again = part.shrink()
        assert isinstance(again.comm, CheckedCommunicator)
        assert again.ranks == (0, 1, 2)
        with pytest.raises(MismatchError):
            again.all_reduce(np.ones(2 + again.rank))
        with pytest.raises(UnsupportedError):
            group.restore()
        if again.rank != 1:
            assert again.shrink(exclude=[1]).ranks == (0, 2)

    run_ranks(body, 3, backend=open_engine)
