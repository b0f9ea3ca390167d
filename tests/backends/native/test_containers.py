"""Ranks in several containers of one host (namespaces that unshare makes), and under a container's seccomp filter.

Ranks are started as torchrun would start them, each in namespaces of its own.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rankwise import _native
from rankwise.backends.native import rendezvous
from rankwise.contract.errors import MismatchError, UnsupportedError
from rankwise.contract.job import Job
from rankwise.observe.jobs import running_jobs
from rankwise.system import locality, proc
from seccomp import NUMBERS

TESTS = Path(__file__).parents[2]
PIDS = ("--pid", "--fork", "--kill-child")
EVERYTHING = (*PIDS, "--mount-proc", "--ipc", "--user", "--map-root-user", "--mount", "--uts", "--cgroup")

# What every program begins with.
BEGIN = """
import json, os, signal, sys, time
import numpy as np
import rankwise as rw
from seccomp import forbid

def show(value):
    print(json.dumps(value), flush=True)
"""
# Every kind of operation, with messages large enough for single copy.
OPERATIONS = (
    BEGIN
    + """
def operate(group):
    n, rank, size = group.world_size, group.rank, 300_000
    x = np.full(size, rank + 1.0)
    assert (group.all_reduce(x.copy()) == n * (n + 1) / 2).all()
    assert (group.broadcast(x.copy(), src=1) == 2).all()
    assert (group.all_gather(x)[:, -1] == np.arange(1, n + 1)).all()
    sent = np.arange(n * size, dtype=np.float64)
    registered = group.empty(n * size, np.float64)
    registered[:] = sent
    for source in (sent, registered):
        assert (group.scatter(source) == np.arange(size) + rank * size).all()
        group.gather(source)
        group.all_to_all(source)
        group.reduce_scatter(source)
    got = group.isend(x, (rank + 1) % n), group.recv((size,), (rank - 1) % n)
    got[0].wait()
    assert (got[1] == (rank - 1) % n + 1).all()
    group.barrier()
    if n > 2:
        assert group.split(rank % 2).all_reduce(1) == len(range(rank % 2, n, 2))
"""
)


def ranks(
    program: str, n: int, container: Sequence[str] = (), limit: float = 60.0, **variables: str
) -> list[tuple[int, Any, str]]:
    """The exit status of each rank, the JSON in its last line, and its errors. container: unshare's options."""
    unshare = ["unshare", *container] if container else []
    environment = {
        **os.environ,
        "WORLD_SIZE": str(n),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
        "RANKWISE_TIMEOUT": "30",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(TESTS),
        **variables,
    }
    processes = [
        subprocess.Popen(
            [*unshare, sys.executable, "-c", program],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    found = []
    for process in processes:
        out, err = process.communicate(timeout=limit)
        lines = out.splitlines()
        found.append((process.returncode, json.loads(lines[-1]) if lines else None, err))
    return found


def values(found: list[tuple[int, Any, str]]) -> list[Any]:
    assert [code for code, _, _ in found] == [0] * len(found), found
    return [value for _, value, _ in found]


@pytest.fixture
def container() -> Callable[..., tuple[str, ...]]:
    """unshare's options for a container, once it is known that this system makes one."""

    def checked(*options: str) -> tuple[str, ...]:
        try:
            made = subprocess.run(["unshare", *options, "true"], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("no containers for this test: unshare is not installed (util-linux)")
        if made.returncode:
            pytest.skip(f"no containers for this test: {made.stderr.strip()}")
        return options

    return checked


filters = pytest.mark.skipif(not NUMBERS, reason="the numbers of this machine's system calls are not in seccomp.py")


@pytest.mark.parametrize(
    "options",
    [PIDS, ("--ipc",), ("--user", "--map-root-user"), ("--mount",), EVERYTHING],
    ids=["pid", "ipc", "user", "mount", "all"],
)
def test_ranks_in_several_containers_share_memory(
    options: tuple[str, ...], container: Callable[..., tuple[str, ...]]
) -> None:
    program = OPERATIONS + "with rw.init() as group: operate(group); show([group.backend, group.world_size])"
    found = ranks(program, 3, container(*options), LOCAL_RANK="0", LOCAL_WORLD_SIZE="3")
    assert values(found) == [["shm", 3]] * 3


def test_memory_of_another_container_is_not_read_directly(container: Callable[..., tuple[str, ...]]) -> None:
    program = (
        BEGIN
        + """
try:
    rw.init().all_gather(np.ones(100_000))
except rw.UnsupportedError as error:
    show(str(error))
"""
    )
    found = ranks(program, 2, container(*PIDS), RANKWISE_ALGORITHM="all_gather=single_copy")
    assert all("read and write each other's memory" in text for text in values(found))


def test_a_death_in_another_container_is_noticed(container: Callable[..., tuple[str, ...]]) -> None:
    program = (
        BEGIN
        + """
group = rw.init()
buffer = group.empty(1_000_000)  # registered: the survivors free the lost rank's
group.barrier()
if group.rank == 1:
    os._exit(3)
began = time.monotonic()
try:
    group.all_reduce(np.ones(100))
except rw.PeerLostError as error:
    fields = [error.rank, error.pid, str(error)]
smaller = group.shrink()
show([*fields, smaller.all_reduce(1), time.monotonic() - began])
"""
    )
    found = ranks(program, 3, container(*PIDS), RANKWISE_TIMEOUT="50")
    for rank in (0, 2):
        code, (lost, pid, text, survivors, took), err = found[rank]
        assert (code, lost, pid, survivors) == (0, 1, 0, 2), err
        assert "rank 1 (in another container) ended" in text
        assert took < 25


@pytest.mark.slow
def test_a_timeout_names_the_rank_in_another_container(container: Callable[..., tuple[str, ...]]) -> None:
    program = (
        BEGIN
        + """
group = rw.init()
if group.rank == 0:
    group.timeout = 1.0
    try:
        group.barrier()
    except rw.CollectiveTimeout as error:
        show([error.missing, error.stacks])
else:
    time.sleep(2)
"""
    )
    found = ranks(program, 2, container(*PIDS))
    assert found[0][1] == [[1], {"1": "no stacks: its process is in another container (PID namespace)"}], found


def test_a_launcher_starts_a_container_per_rank(container: Callable[..., tuple[str, ...]], tmp_path: Path) -> None:
    """Each rank has pid 1 in its container, which is no reason to take them for threads of one process."""
    program = tmp_path / "program.py"
    program.write_text(OPERATIONS + "with rw.init() as group: operate(group); show(os.getpid())")
    run = [sys.executable, "-m", "rankwise", "run", "-n", "2", "--timeout", "30", "--"]
    command = [*run, "unshare", *container(*PIDS), sys.executable, str(program)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["1", "1"]), done.stderr


def test_status_shows_ranks_of_equal_pids(container: Callable[..., tuple[str, ...]], tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = (
        BEGIN
        + f"""
group = rw.init()
group.barrier()
while not os.path.exists({str(go)!r}):
    time.sleep(0.01)
group.barrier()
"""
    )
    unshare = ["unshare", *container(*PIDS), sys.executable, "-c", program]
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    environment |= {"TORCHELASTIC_RUN_ID": str(uuid.uuid4()), "PYTHONPATH": str(TESTS), "RANKWISE_TIMEOUT": "30"}
    started = [subprocess.Popen(unshare, env={**environment, "RANK": str(rank)}) for rank in range(2)]
    try:
        end = time.monotonic() + 30
        seen: list[tuple[int, str]] = []
        while [how for _, how in seen] != ["alive", "alive"] and time.monotonic() < end:
            for job in running_jobs():
                if len(job.holders) == 2 and {pid for _, pid in job.holders} == {1}:
                    seen = [(rank.pid, rank.how) for rank in job.ranks()]
            time.sleep(0.05)
        outside = [proc.fields(f"/proc/{pid}/status")["NSpid"].split()[-1] for pid, _ in seen]
    finally:
        go.touch()
        codes = [process.wait(30) for process in started]
    assert ([how for _, how in seen], codes) == (["alive", "alive"], [0, 0])
    assert outside == ["1", "1"]  # they are shown by the pids that they have here
    assert len({pid for pid, _ in seen}) == 2


# ---- several network namespaces ----


def test_ranks_meet_in_a_shared_directory(container: Callable[..., tuple[str, ...]], directory: Path) -> None:
    program = OPERATIONS + "with rw.init() as group: operate(group); show(group.backend)"
    options = container("--net", *PIDS)
    for _ in range(2):
        assert values(ranks(program, 2, options, RANKWISE_SOCKET_DIR=str(directory))) == ["shm", "shm"]
        assert not list(directory.iterdir())


def test_the_file_of_a_killed_rank_0_is_replaced(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKWISE_SOCKET_DIR", str(directory))
    jobs = [Job(rank, 2, None, None, "test", "a job") for rank in range(2)]
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(rendezvous._address(jobs[0]))
    left.listen()
    with pytest.raises(MismatchError, match="another process is already rank 0"):
        rendezvous.meet(jobs[0], 0.1)
    left.close()  # which leaves the file
    assert len(list(directory.iterdir())) == 1
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(rendezvous.meet, jobs, [20.0, 20.0])
    assert os.fstat(first.fd).st_ino == os.fstat(second.fd).st_ino
    assert not list(directory.iterdir())


def test_the_file_of_another_user_is_an_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory with the sticky bit. Root may replace every file, so the system's refusal is pretended."""

    def refuse(*paths: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setenv("RANKWISE_SOCKET_DIR", str(directory))
    monkeypatch.setattr(rendezvous.os, "rename", refuse)
    with pytest.raises(UnsupportedError, match=f"{directory}/.* belongs to another user.*remove that file"):
        rendezvous.meet(Job(0, 2, None, None, "test", "a job"), 5.0)
    assert not list(directory.iterdir())


def test_without_a_shared_directory_the_error_says_what_is_missing(container: Callable[..., tuple[str, ...]]) -> None:
    program = (
        BEGIN
        + """
try:
    rw.init()
except rw.CollectiveTimeout as error:
    show(str(error))
"""
    )
    found = ranks(program, 2, container("--net"), RANKWISE_TIMEOUT="1")
    assert all("in one network namespace (--network host)?" in text for text in values(found))


@pytest.fixture
def directory() -> Iterator[Path]:
    """With a short path, as a unix socket needs it."""
    with tempfile.TemporaryDirectory(prefix="rankwise-", dir="/tmp") as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("mode", "message"),
    [(0o777, "nobody else can write"), (0o1777, ""), (0o700, ""), (None, "No such file or directory")],
)
def test_the_directory_must_be_this_users(
    mode: int | None, message: str, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.chmod(mode or 0o700)
    named = directory if mode else directory / "missing"
    monkeypatch.setenv("RANKWISE_SOCKET_DIR", str(named))
    if message:
        with pytest.raises(ValueError, match=rf"RANKWISE_SOCKET_DIR='{named}': expected .*{message}"):
            locality.locality()
    else:
        assert "socket directory" in locality.locality()


def test_the_directorys_path_must_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir(mode=0o700)
    monkeypatch.setenv("RANKWISE_SOCKET_DIR", str(long))
    with pytest.raises(ValueError, match="expected a path of at most 56 bytes"):
        locality.locality()


# ---- containers that number their own ranks ----


@pytest.mark.slow
def test_containers_in_one_network_number_their_ranks_alike() -> None:
    """Two containers of two ranks each, with LOCAL_RANK but without GROUP_RANK: nothing tells them apart."""
    program = (
        BEGIN
        + """
os.environ |= {"LOCAL_RANK": str(int(os.environ["RANK"]) % 2), "LOCAL_WORLD_SIZE": "2"}
with rw.init("hierarchical") as group:
    show(group.all_reduce(1))
"""
    )
    pytest.importorskip("torch", reason="hierarchical needs torch for gloo")
    from multihost.network import PORT

    assert values(ranks(program, 4, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT + 7))) == [4] * 4


# ---- system calls that are forbidden ----


@filters
@pytest.mark.parametrize("calls", [("process_vm_readv", "process_vm_writev"), ("process_vm_writev",)])
def test_memory_that_must_not_be_read_is_staged(calls: tuple[str, ...]) -> None:
    """Once the group is made, the ranks do not try these calls again: the filter would then kill them."""
    program = (
        OPERATIONS
        + f"""
forbid(*{calls!r})
with rw.init() as group:
    group.barrier()
    forbid("process_vm_readv", "process_vm_writev", kills=True)
    group.barrier()
    operate(group)
    show(group.backend)
"""
    )
    for n in (2, 3):
        assert values(ranks(program, n)) == ["shm"] * n


@filters
def test_without_pidfds_ranks_meet_in_one_pid_namespace(container: Callable[..., tuple[str, ...]]) -> None:
    program = (
        OPERATIONS
        + """
forbid("pidfd_open")
try:
    with rw.init() as group:
        operate(group)
        show(group.backend)
except rw.UnsupportedError as error:
    show(str(error))
"""
    )
    assert values(ranks(program, 2)) == ["shm", "shm"]
    for text in values(ranks(program, 2, container(*PIDS))):
        assert "in several PID namespaces, and the system gives rank 0 no pidfd" in text
        assert "--pid host" in text


def test_a_rank_keeps_few_descriptors_of_ranks_in_other_containers() -> None:
    n, rank = 200, 150
    segment = _native.Segment.create(n)
    pidfd = os.pidfd_open(os.getpid())
    try:
        before = len(os.listdir("/proc/self/fd"))
        rendezvous._watch(segment, [number % 4 for number in range(n)], rank, [segment.fd, *[pidfd] * n])
        assert 8 <= len(os.listdir("/proc/self/fd")) - before <= 64
    finally:
        os.close(pidfd)
