"""What tests may leave behind: processes, shared memory, descriptors, threads, files."""

from __future__ import annotations

import gc
import os
import threading
import uuid
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

# Inherited by every process that a test starts, however deep, so that an orphan is recognised too.
MARK = f"RANKWISE_TEST_SESSION={uuid.uuid4().hex}"


# What an MPI that aborts leaves; the tests of MPI remove it, which may run beside the others.
MPI_FILES = ("mpich_shm_*", "sm_segment.*", "vader_segment.*")


def shared_memory_files() -> set[str]:
    """Those in /dev/shm that are not MPI's."""
    return {file for file in os.listdir("/dev/shm") if not any(fnmatch(file, pattern) for pattern in MPI_FILES)}


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


def open_descriptors() -> Counter[str]:
    """What this process's descriptors lead to."""
    found: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{fd}")] += 1
        except FileNotFoundError:
            continue  # the one that listed the others
    return found


def segments() -> Counter[str]:
    """The segments that this process maps or holds open."""
    maps = [line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines() if "/memfd:rankwise" in line]
    return Counter(maps) + Counter({name: n for name, n in open_descriptors().items() if "/memfd:rankwise" in name})


def held_here() -> tuple[list[str], set[threading.Thread]]:
    """The descriptors and threads of this process."""
    gc.collect()
    return sorted(os.listdir("/proc/self/fd")), set(threading.enumerate())


def holds_more_than(before: tuple[list[str], set[threading.Thread]]) -> bool:
    """Whether this process holds more than then; a free-threaded Python frees what earlier tests have left later on."""
    descriptors, threads = held_here()
    return len(descriptors) > len(before[0]) or not threads <= before[1]
