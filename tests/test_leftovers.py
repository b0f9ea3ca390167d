"""tests/leftovers.py: which files count as left behind."""

from __future__ import annotations

from pathlib import Path

from leftovers import shared_memory_files


def test_what_an_aborted_mpi_leaves_is_not_another_tests() -> None:
    before = shared_memory_files()
    names = ["sm_segment.rankwise-test.0", "mpich_shm_rankwise-test", "rankwise-test"]
    files = [Path("/dev/shm", name) for name in names]
    try:
        for file in files:
            file.touch()
        assert shared_memory_files() - before >= {"rankwise-test"}
        assert not shared_memory_files() & set(names[:2])
    finally:
        for file in files:
            file.unlink(missing_ok=True)
