"""For every test: a hang ends with the stacks printed, and nothing may be left behind."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

GRACE = 3.0  # seconds for what is ending to be gone

# Inherited by every process that a test starts, however deep, so that an orphan is recognised too.
MARK = f"RANKWISE_TEST_SESSION={uuid.uuid4().hex}"

os.environ.update([MARK.split("=")])
os.environ.setdefault("RANKWISE_TIMEOUT", "60")  # ranks that wait for each other say so well before pytest's timeout
os.environ.setdefault("PYTHONFAULTHANDLER", "1")  # a rank that crashes prints its stack


def shared_memory_files() -> set[str]:
    return set(os.listdir("/dev/shm"))


def in_use(file: str) -> bool:
    """Whether a living process maps this shared-memory file; then it is that program's, and not left over."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if f"/dev/shm/{file}" in maps.read_text():
                return True
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return False


def started_processes() -> dict[int, str]:
    """The living processes that this test session started, {pid: command line}."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue  # ended meanwhile
            if state not in "ZX":
                parents[int(entry)] = int(parent)

    found: dict[int, str] = {}
    for pid in parents:
        ancestor = parents[pid]
        while ancestor != os.getpid() and ancestor in parents:
            ancestor = parents[ancestor]
        try:
            marked = MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if pid != os.getpid() and (marked or ancestor == os.getpid()):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After a test file there are no processes and no unused shared-memory files that it did not find."""
    files, processes = shared_memory_files(), started_processes()
    yield
    if "rankwise.testing" in sys.modules:
        sys.modules["rankwise.testing"].close_pools()  # run_ranks keeps its rank processes for the next call
    end = time.monotonic() + GRACE
    while True:
        new_files = {file for file in shared_memory_files() - files if not in_use(file)}
        new_processes = {pid: command for pid, command in started_processes().items() if pid not in processes}
        if not new_files and not new_processes:
            return
        if time.monotonic() > end:
            break
        time.sleep(0.05)
    pytest.fail(f"left behind: in /dev/shm {sorted(new_files)}, processes {new_processes}", pytrace=False)
