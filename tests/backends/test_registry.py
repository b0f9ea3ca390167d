"""Backends by name, including those of other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.backends import registry
from rankwise.contract.errors import UnsupportedError
from rankwise.contract.job import Job


def test_known_names() -> None:
    assert {"gloo", "mpi", "shm", "solo", "threads"} <= set(registry.names())


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"^backend='gpu': expected one of .*shm.*solo.*threads"):
        registry.opener("gpu")


@pytest.mark.parametrize("name", ["shm", "solo", "threads"])
def test_built_in_backends_open_a_world_of_one(name: str) -> None:
    with registry.opener(name)(Job(), 5.0) as comm:
        assert (comm.rank, comm.world_size, comm.timeout) == (0, 1, 5.0)
        assert repr(comm) == f"<{name} communicator, rank 0 of 1>"
        comm.barrier()
    assert repr(comm) == f"<{name} communicator, rank 0 of 1, closed>"


def test_backends_for_one_refuse_many() -> None:
    job = Job(0, 4, launcher="torchrun", id="x")
    with pytest.raises(ValueError, match=r"^backend='solo' is for one rank, and this job has 4 \(torchrun\)$"):
        registry.opener("solo")(job, 1.0)
    with pytest.raises(UnsupportedError, match=r"the ranks of this job are processes; rankwise.spawn"):
        registry.opener("threads")(job, 1.0)


def test_an_outside_package_offers_a_backend(tmp_path: Path) -> None:
    (tmp_path / "their_backend.py").write_text(
        "from rankwise.backends.native import solo\n"
        "def connect(job, timeout):\n"
        "    print('theirs', job.world_size, timeout)\n"
        "    return solo.open_communicator(job, timeout)\n"
    )
    metadata = tmp_path / "theirs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[rankwise.backends]\ntheirs = their_backend:connect\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "import rankwise as rw\n"
        "from rankwise.backends import registry\n"
        "assert 'theirs' in registry.names() and 'their_backend' not in sys.modules\n"
        "print(rw.init('theirs', timeout=3).backend)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout
    assert told.splitlines() == ["theirs 1 3.0", "theirs"]
