"""Joining a segment that a launcher passes to this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from rankwise._native import Segment, version

AGAIN = """
import rankwise as rw
for turn in range(3):
    with rw.init(timeout=20) as group:
        assert group.all_reduce(1) == 2 and group.backend == "shm"
print("ok")
"""


def test_ranks_can_open_again_after_close() -> None:
    segment = Segment.create(2)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN],
            pass_fds=[segment.fd],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANKWISE_RANK": str(rank),
                "RANKWISE_WORLD_SIZE": "2",
                "RANKWISE_SEGMENT_FD": str(segment.fd),
            },
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["ok\n", "ok\n"]
    assert [rank.returncode for rank in ranks] == [0, 0]


def two_ranks(program: str) -> subprocess.CompletedProcess[str]:
    return ranks(2, program)


def ranks(n: int, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), "--", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


UNREADABLE = """
import ctypes, mmap, os, sys
import numpy as np
import rankwise as rw
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(447, 0)  # memfd_secret: memory that no other process can be given
if fd < 0:
    sys.exit("no memfd_secret: " + os.strerror(ctypes.get_errno()))
size = 33 << 20
os.ftruncate(fd, size)
everything = np.frombuffer(mmap.mmap(fd, size), np.float32)
secret = everything[: 5 << 18]
group = rw.init(timeout=20)
for root in (0, 1):  # blocks so large that root would take some of the other's over
    everything[:] = np.arange(everything.size) + group.rank
    gathered = group.gather(everything, root)
    if group.rank == root:
        np.testing.assert_array_equal(gathered[1] - gathered[0], np.ones(everything.size, np.float32))
    group.scatter(None if gathered is None else gathered[::-1].copy(), root, out=everything.reshape(1, -1))
    np.testing.assert_array_equal(everything[:9], np.arange(9) + 1 - group.rank)
    np.testing.assert_array_equal(everything[-9:], np.arange(everything.size - 9, everything.size) + 1 - group.rank)
for x in (secret, secret[: 70_000], secret if group.rank else np.empty_like(secret)):
    x[:] = np.arange(x.size) + group.rank
    want = 2 * np.arange(x.size, dtype=np.float32) + 1
    np.testing.assert_array_equal(group.reduce_scatter(x), np.array_split(want, 2)[group.rank])
    np.testing.assert_array_equal(group.all_reduce(x), want)
    parts = x[: x.size // 2 * 2].reshape(2, -1)
    group.all_gather(parts[0].copy(), out=parts)
    np.testing.assert_array_equal(parts, np.stack([want[: parts.shape[1]]] * 2))
print("ok")
"""

UNREADABLE_BY_SOME = """
import ctypes, mmap, os, sys, time
import numpy as np
import rankwise as rw
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(447, 0)  # memfd_secret
if fd < 0:
    sys.exit("no memfd_secret: " + os.strerror(ctypes.get_errno()))
size = 24 << 20
os.ftruncate(fd, size)
secret = np.frombuffer(mmap.mmap(fd, size), np.float32)
group = rw.init(timeout=20)
me, n = group.rank, group.world_size

def memory(count, hidden, part=0):
    x = secret[part << 20 :][:count] if hidden else np.empty(count, np.float32)
    return x

for count in (6_000, 30_000, 400_000):  # 24 KB, where ranks begin to reach into each other's memory, to 1.6 MB
    for hidden in [{0}, {1}, set(range(n))]:
        here = me in hidden
        data = np.arange(count, dtype=np.float32)
        for root in range(n):
            x = memory(count, here)
            x[:] = data + me
            group.broadcast(x, root)
            np.testing.assert_array_equal(x, data + root)
            x[:] = data + me
            whole = memory(count * n, here, 1).reshape(n, -1) if me == root else None
            group.gather(x, root, out=whole)
            if me == root:
                np.testing.assert_array_equal(whole, np.stack([data + rank for rank in range(n)]))
            got = memory(count, here, 3)
            group.scatter(whole, root, out=got.reshape(1, -1))
            np.testing.assert_array_equal(got, data + me)
        x[:] = data + me
        whole = memory(count * n, here, 1).reshape(n, -1)
        group.all_gather(x, out=whole)
        np.testing.assert_array_equal(whole, np.stack([data + rank for rank in range(n)]))
        out = memory(count * n, here, 3).reshape(n, -1)
        group.all_to_all(whole, out=out)
        np.testing.assert_array_equal(out, np.stack([data + me] * n))
        uneven = group.gather_v(x if me == 0 else x[:0], 1)
        assert me != 1 or np.array_equal(uneven, data)
        for first in ("send", "recv"):  # whichever is there first
            group.barrier()
            got = memory(count, here, 3)
            got[:] = -1
            if me == 0:
                if first == "recv":
                    time.sleep(0.02)
                group.send(x, 1)
            elif me == 1:
                if first == "send":
                    time.sleep(0.02)
                group.recv(got, 0)
                np.testing.assert_array_equal(got, data)
print("ok")
"""


@pytest.mark.parametrize("n", [2, 3])
def test_unreachable_memory_is_staged(n: int) -> None:
    """As memory that a driver maps: on one rank, on the other, on all."""
    done = ranks(n, UNREADABLE_BY_SOME)
    if "no memfd_secret" in done.stderr:
        pytest.skip("this kernel makes no memory that other processes cannot read (memfd_secret)")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["ok"] * n


NOT_DUMPABLE = """
import ctypes, time
import numpy as np
import rankwise as rw
libc = ctypes.CDLL(None)
PR_SET_DUMPABLE, CAP_SYS_PTRACE = 4, 19
header, sets = (ctypes.c_uint32 * 2)(0x20080522), (ctypes.c_uint32 * 6)()
assert libc.capget(header, sets) == 0
sets[0] &= ~(1 << CAP_SYS_PTRACE)  # with which root may access memory all the same
sets[1] &= ~(1 << CAP_SYS_PTRACE)
assert libc.capset(header, sets) == 0
group = rw.init(timeout=20)
me = group.rank
x, whole, out = np.empty(1 << 17), np.empty((2, 1 << 17)), np.empty((2, 1 << 17))
data = np.arange(x.size)

def operate():
    x[:] = data + me
    np.testing.assert_array_equal(group.all_reduce(x), 2 * data + 1)
    x[:] = data + me
    np.testing.assert_array_equal(group.all_gather(x, out=whole), np.stack([data, data + 1]))
    np.testing.assert_array_equal(group.all_to_all(whole, out=out), np.stack([data + me] * 2))
    np.testing.assert_array_equal(group.reduce_scatter(whole), [2 * (data + me)])
    for root in (0, 1):
        x[:] = data + me
        group.gather(x, root, out=whole if me == root else None)
        group.scatter(whole if me == root else None, root, out=out[:1])
        np.testing.assert_array_equal(out[0], data + me)
        total = group.reduce(x, root)
        assert me != root or np.array_equal(total, 2 * data + 1)
        x[:] = data + me
        np.testing.assert_array_equal(group.broadcast(x, root), data + root)
        for delay in (0, 0.02):  # whichever is there first
            group.barrier()
            time.sleep(delay if me == root else 0.02 - delay)
            x[:] = data + me
            if me == root:
                group.send(x, 1 - me)
            else:
                np.testing.assert_array_equal(group.recv(x, root), data + root)

for hidden in ((), (0,), (1,), (0, 1), ()):
    libc.prctl(PR_SET_DUMPABLE, int(me not in hidden), 0, 0, 0)
    time.sleep(0.02)  # the engine asks at most once in a tick of the system's coarse clock
    group.barrier()
    operate()
    group.barrier()
print("ok")
"""


def test_ranks_that_become_undumpable_use_the_slots() -> None:
    done = two_ranks(NOT_DUMPABLE)
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["ok", "ok"]


def test_unreadable_memory() -> None:
    done = two_ranks(UNREADABLE)
    if "no memfd_secret" in done.stderr:
        pytest.skip("this kernel makes no memory that other processes cannot read (memfd_secret)")
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["ok", "ok"]


def test_a_missing_descriptor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rankwise as rw; rw.init()"],
        env={**os.environ, "RANKWISE_RANK": "0", "RANKWISE_WORLD_SIZE": "2", "RANKWISE_SEGMENT_FD": "97"},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: RANKWISE_SEGMENT_FD=97: expected the descriptor")


OF_ANOTHER_RELEASE = """
import os
import re
import rankwise as rw
from rankwise._native import Segment
passed = Segment.create(2)
os.pwrite(passed.fd, b"0.0.9", 8)
os.environ["RANKWISE_SEGMENT_FD"] = str(passed.fd)
rw.init()
"""


def test_a_launcher_of_another_release() -> None:
    done = two_ranks(OF_ANOTHER_RELEASE)
    assert done.returncode == 1
    assert f"a segment of rankwise 0.0.9, and this process runs rankwise {version}: expected the same" in done.stderr


WRITES_BEYOND_AN_ARRAY = """
import ctypes, resource
import rankwise as rw
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
group = rw.init(timeout=20)
x = group.empty(1000) if group.rank == 0 else None  # the first array: before it lies no other one
group.barrier()
if group.rank == 0:
    ctypes.memset(x.ctypes.data - 1, 1, 1)
try:
    group.barrier()
except rw.PeerLostError as error:
    print(error)
"""


def test_a_write_beyond_an_array_does_not_reach_what_the_ranks_share() -> None:
    assert re.match(r"rank 0 \(.*\) was killed by SIGSEGV", two_ranks(WRITES_BEYOND_AN_ARRAY).stdout)


IN_A_SECOND_GROUP = """
import os, signal
import rankwise as rw
rw.init(timeout=20).close()
group = rw.init(timeout=20)
if group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    group.barrier()
except rw.PeerLostError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_death_fails_a_second_group() -> None:
    done = two_ranks(IN_A_SECOND_GROUP)
    assert "rank 1 (pid" in done.stdout, done.stderr


DIRECT = """
import os
import re
os.environ["RANKWISE_DIRECT"] = os.environ["RANKWISE_RANK"]
import numpy as np, rankwise as rw
with rw.init() as group:
    try:
        group.all_reduce(np.ones(1 << 12))
    except rw.UnsupportedError as error:
        print(error.why)
"""


def test_one_rank_may_forbid_access_to_private_memory_for_all() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rankwise", "run", "-n", "2", "--", sys.executable, "-c", DIRECT],
        env={**os.environ, "RANKWISE_ALGORITHM": "all_reduce=single_copy"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all("which the system or RANKWISE_DIRECT=0 forbids here" in line for line in lines)
