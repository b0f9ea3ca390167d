"""The mpi backend under the mpiexec of Open MPI and of MPICH, each in an environment of its own.

A part of the conformance suite; all of it with RANKWISE_ENGINES=full, as `make test-all PART=engines` sets it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpi_launchers
from engines import FULL

SOME = ("all_reduce", "reduce_scatter", "all_to_all_v", "gather_v", "send_recv")


@pytest.fixture(scope="module", autouse=True)
def files_of_aborted_jobs() -> Iterator[None]:
    """MPI's Abort leaves MPI's shared memory behind; nothing else may stay, see tests/conftest.py."""
    with mpi_launchers.files_of_aborted_jobs():
        yield


@pytest.fixture(params=mpi_launchers.LAUNCHERS, scope="module")
def mpi(request: pytest.FixtureRequest) -> Path:
    """Where the programs of one MPI's environment are."""
    return mpi_launchers.programs(request.param)


def run(mpi: Path, n: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return mpi_launchers.run(mpi, n, *arguments, timeout=600 if FULL else 100, **variables)


def program(
    mpi: Path, n: int, code: str, errors: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code in which `group` is the world on mpi.

    errors: where the ranks write them. A job that is aborted ends before mpiexec has passed all on.
    """
    start = "import os, sys, time\nimport numpy as np, rankwise as rw\ngroup = rw.init('mpi')\n"
    if errors is not None:
        start = f"import os\nos.dup2(os.open({str(errors)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)\n{start}"
    return run(mpi, n, "-c", start + code, **variables)


# Groups have failed, so that the end of the program would be that of the job; and a rank that ends
# without MPI's Finalize takes the others along, whatever they are still to print.
ENDS = """
sys.stdout.flush()
from mpi4py import MPI
MPI.Finalize()
"""


@pytest.mark.timeout(620 if FULL else 240)
@pytest.mark.parametrize(("n", "check"), [(2, ""), (4, ""), (2, "1")] if FULL else [(3, "")])
def test_conformance(mpi: Path, n: int, check: str) -> None:
    chosen = [word for name in (() if FULL else SOME) for word in ("--operation", name)]
    program = ["-m", "rankwise.testing.conformance", "--backend", "mpi", "--timeout", "90"]
    assert_no_failures(run(mpi, n, *program, *chosen, RANKWISE_CHECK=check))


@pytest.mark.skipif(not FULL, reason="the whole conformance suite; make test-all PART=engines runs it")
@pytest.mark.timeout(620)
@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 1)])
def test_conformance_between_hosts(mpi: Path, hosts: tuple[int, ...]) -> None:
    """hierarchical: shared memory among the ranks of each of two pretended hosts, MPI between them."""
    program = str(Path(__file__).with_name("hosts_over_mpi.py"))
    assert_no_failures(run(mpi, len(hosts), program, *map(str, hosts)))


def test_counters_and_locks_between_hosts(mpi: Path) -> None:
    ran = run(mpi, 3, str(Path(__file__).with_name("shared_between_hosts.py")), "mpi")
    assert ran.returncode == 0, ran.stderr
    for rank in range(3):  # mpiexec may join the lines of two ranks
        assert ran.stdout.count(f"rank {rank}: all is as it should be") == 1


def test_a_rank_may_close_a_group_with_counters_before_the_others(mpi: Path) -> None:
    """MPI frees a window when all ranks do: the others close one group later, and the other one at their end."""
    code = """
part, other = group.dup(), group.dup()
for each in (part, other):
    each.comm.words(1)
if group.rank == 0:
    part.close(0.1)
    other.close(0.1)
    group.send(1, 1)
else:
    group.recv((), 0, dtype=int)
    part.close()
print("closed")
"""
    ran = program(mpi, 2, code)
    assert (ran.returncode, ran.stdout) == (0, "closed\nclosed\n"), ran.stderr


def test_blocks_larger_than_mpi_can_count(mpi: Path) -> None:
    """The way MPIs before version 4 move more than 2^31 bytes; here the limit is set to 100."""
    code = """
from itertools import product
from rankwise.backends.mpi import communicator
communicator.BLOCK = 16
group.comm._most, group.comm._counts_ints = 100, True
n, me = group.world_size, group.rank

def rows(rank, count, to=0):
    return (np.arange(count * 3, dtype=np.int32) + 1000 * rank + 100 * to).reshape(count, 3)

for counts in ([1, 2, 3], [0, 40, 1], [30, 0, 0], [30, 31, 32], [0, 0, 0]):
    every = np.concatenate([rows(rank, counts[rank]) for rank in range(n)])
    assert np.array_equal(group.all_gather_v(rows(me, counts[me])), every)
    for root in range(n):
        got = group.gather_v(rows(me, counts[me]), root)
        assert me != root or np.array_equal(got, every)
        got = group.scatter_v(every if me == root else None, counts, root)
        assert np.array_equal(got, rows(me, counts[me]))
    assert np.array_equal(group.reduce_scatter_v(every, counts), rows(me, counts[me]) * n)
    # Rank 0 sends more than the limit, and the last rank less.
    sends = [[count // (rank + 1) for count in counts] for rank in range(n)]
    out = np.concatenate([rows(me, sends[me][to], to) for to in range(n)])
    got, received = group.all_to_all_v(out, sends[me])
    assert received == [sends[rank][me] for rank in range(n)]
    assert np.array_equal(got, np.concatenate([rows(rank, sends[rank][me], me) for rank in range(n)]))
os.write(1, b"right\\n")
"""
    ran = program(mpi, 3, code)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr


@pytest.mark.skipif(not FULL, reason="gigabytes, for a minute; make test-all PART=engines runs it")
@pytest.mark.timeout(320)
def test_more_bytes_than_an_int_counts(mpi: Path) -> None:
    """Open MPI 5 has no calls that count them; MPICH has. Ranks 0 and 1 hold 2 GiB each, twice for a moment."""
    (available,) = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    if int(available) < 8 << 20:
        pytest.skip(f"this test takes 7 GiB of memory, and {int(available) >> 20} GiB are available")
    code = """
n, places = 2**31 + 11, [0, 2**31 - 1, 2**31, 2**31 + 10]

def marked():
    x = np.zeros(n, np.uint8)
    x[places] = 7
    return x

x = marked() if group.rank == 0 else np.zeros(n, np.uint8)
group.broadcast(x)
assert (x[places] == 7).all() and np.count_nonzero(x) == 4
if group.rank == 0:
    group.send(x, 1)
else:
    x[:] = 1
    group.recv(x, 0)
    assert (x[places] == 7).all() and np.count_nonzero(x) == 4
del x
out = group.all_gather_v(marked() if group.rank == 0 else np.full(3, 9, np.uint8))
assert out.size == n + 3 and (out[places] == 7).all() and (out[n:] == 9).all() and np.count_nonzero(out) == 7
del out
x = np.full(3, 9, np.uint8)
out = group.gather_v(marked() if group.rank == 0 else x, dst=1)
if group.rank:
    assert out.size == n + 3 and (out[places] == 7).all() and (out[n:] == 9).all() and np.count_nonzero(out) == 7
    part = group.scatter_v(out, [3, n], src=1)
    assert np.array_equal(part, out[3:])
else:
    part = group.scatter_v(None, None, src=1)
    assert part.tolist() == [7, 0, 0]
del out, part
x = marked() if group.rank == 0 else np.full(3, 9, np.uint8)
got, counts = group.all_to_all_v(x, [1, n - 1] if group.rank == 0 else [2, 1])
if group.rank == 0:
    assert got.tolist() == [7, 9, 9]
else:
    assert counts == [n - 1, 1] and np.count_nonzero(got) == 4 and got[-1] == 9 and got[places[1] - 1] == 7
os.write(1, b"right\\n")
"""
    ran = program(mpi, 2, code)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 2), ran.stderr


def assert_no_failures(ran: subprocess.CompletedProcess[str]) -> None:
    """Of the conformance suite."""
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert ran.stdout.count(" 0 failures") == 1, "every rank printed, or none"
    assert "FAIL" not in ran.stdout.replace("FAIL: wrong", "")


def test_groups_and_messages(mpi: Path) -> None:
    """The scenarios for groups and messages, with the ranks started once."""
    code = """
from rankwise.testing.scenarios import SCENARIOS
for name in ("nested_splits", "negative_color_takes_no_part", "large_colors", "every_pair", "messages_from_any_rank",
             "messages_of_unknown_size", "exchanges_with_neighbours",
             "large_both_ways", "many_pending_works", "nan_propagates", "integers_wrap", "refused_arguments",
             "one_rank_has_it_all", "closed_groups_raise"):
    SCENARIOS[name](group)
with group.dup() as part:
    sending = part.isend(7, part.rank, tag=50_000)
    assert part.recv((), part.rank, tag=50_000, dtype=int) == 7
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()  # the program's own, and still there when the group is closed
group.close()
if MPI.COMM_WORLD.reduce(1) == 3:
    print("all", MPI.COMM_WORLD.Get_size())
"""
    ran = program(mpi, 3, code)
    assert (ran.returncode, ran.stdout) == (0, "all 3\n"), ran.stderr


def test_on_one_host_shared_memory_is_the_default(mpi: Path) -> None:
    code = "import rankwise as rw; g = rw.init(); assert g.all_reduce(1) == 3; g.rank or print(g.backend)"
    assert run(mpi, 3, "-c", code).stdout == "shm\n"
    assert run(mpi, 3, "-c", code, RANKWISE_BACKEND="mpi").stdout == "mpi\n"


@pytest.mark.slow
def test_a_rank_that_does_not_join_ends_the_job(mpi: Path, tmp_path: Path) -> None:
    code = "if group.rank:\n    time.sleep(60)\ngroup.all_reduce(np.ones(3))"
    ran = program(mpi, 2, code, tmp_path / "errors", RANKWISE_TIMEOUT="0.5")
    said = (tmp_path / "errors").read_text()
    assert ran.returncode != 0
    assert "rank 0 of 2 has waited longer than 0.5 s for other ranks in all_reduce(count=3" in said
    assert 'File "<string>", line 8' in said, "where in the program it waits"


def test_a_rank_that_raises_ends_the_job(mpi: Path, tmp_path: Path) -> None:
    """Otherwise MPI's Finalize would wait for the other ranks, and they for this one."""
    code = "if group.rank:\n    1 / 0\ngroup.all_reduce(np.ones(3))"
    ran = program(mpi, 2, code, tmp_path / "errors")
    assert ran.returncode != 0
    assert "the job is ended: ZeroDivisionError" in (tmp_path / "errors").read_text()


def test_a_probe_finds_a_message_behind_others(mpi: Path) -> None:
    code = """
if group.rank == 0:
    for tag, dtype in enumerate((np.float64, np.int8, np.uint16, np.int8)):
        group.send(np.ones(tag, dtype), 1, tag)
else:
    assert group.probe(0, 3, timeout=30).count == 3
    found = [group.probe(src, tag) for src in (0, rw.ANY) for tag in (2, 1, 0)]
    assert [(one.tag, one.count, one.dtype) for one in found[:3]] == [
        (2, 2, rw.DType.U16), (1, 1, rw.DType.I8), (0, 0, rw.DType.F64)]
    assert found[:3] == found[3:]
    assert group.probe(0, 4) is None
    assert [group.recv_any(0, tag).data.size for tag in (3, rw.ANY, 2, rw.ANY)] == [3, 0, 2, 1]
    assert group.probe(tag=rw.ANY) is None
group.barrier()
group.close()
"""
    ran = program(mpi, 2, code)
    assert ran.returncode == 0, ran.stderr


def test_objects_of_any_length_and_messages_of_another_kind(mpi: Path) -> None:
    code = """
def refused(receive):
    try:
        receive(0)
    except rw.MismatchError:
        return
    raise AssertionError("it was received")

objects = [None, "x" * 5000, ["y"] * 20000, {"a": np.arange(3)}, range(9), {"a": np.ones(100000)}]
arrays = [np.arange(0), np.arange(4), np.ones(100000)]
if group.rank == 0:
    for one in objects:
        group.send_object(one, 1)
    for one in arrays:
        group.send(one, 1)
    group.send_object("last", 1)
else:
    for one in objects:
        got = group.recv_object(0)
        assert str(got) == str(one) and type(got) is type(one), got
    for one in arrays:
        refused(group.recv_object)
        assert np.array_equal(group.recv_any(0, tag=rw.ANY).data, one)
    refused(lambda src: group.recv_any(src, dtype=int))
    assert group.recv_object(0) == "last"
"""
    ran = program(mpi, 2, code + ENDS)
    assert ran.returncode == 0, ran.stderr


def test_a_closed_group_is_freed(mpi: Path) -> None:
    code = """
import gc, weakref
part = group.split(0)
part.send_object(1, part.rank)
assert part.recv_object(part.rank) == 1
comm, transport = weakref.ref(part.comm), weakref.ref(part.comm._transport)
part.close()
del part
end = time.monotonic() + 20
while (comm() or transport()) and time.monotonic() < end:
    gc.collect()
    time.sleep(0.01)  # the watchdog's thread may be looking at its communicators
assert comm() is None and transport() is None
"""
    ran = program(mpi, 2, code + ENDS)
    assert ran.returncode == 0, ran.stderr


def test_an_mpi_that_one_thread_at_a_time_may_call(mpi: Path) -> None:
    code = """
from mpi4py import MPI
from rankwise.testing.scenarios import SCENARIOS
assert MPI.Query_thread() == MPI.THREAD_SERIALIZED
for name in ("every_pair", "messages_from_any_rank", "messages_of_unknown_size"):
    SCENARIOS[name](group)
assert group.all_gather_object(group.rank) == [0, 1]
"""
    ran = program(mpi, 2, code + ENDS, MPI4PY_RC_THREAD_LEVEL="serialized")
    assert ran.returncode == 0, ran.stderr


def test_a_message_of_another_size_or_type(mpi: Path) -> None:
    code = """
for other in (np.zeros(4), np.zeros(6), np.zeros(5, np.int32)):
    part = group.dup()
    if part.rank == 0:
        part.send(np.ones(5), 1)
    else:
        try:
            part.recv(other, 0)
        except rw.MismatchError as error:
            print(error)
"""
    ran = program(mpi, 2, code + ENDS)
    lines = ran.stdout.splitlines()
    assert len(lines) == 3, ran.stderr
    assert "count=4" in lines[0]
    assert "(count=5, dtype=float64, tag=0), the receive expects (count=6, dtype=float64)" in lines[1]
    assert "(count=5, dtype=float64, tag=0), the receive expects (count=5, dtype=int32)" in lines[2]


def test_mismatches_are_found_on_request(mpi: Path) -> None:
    code = """
x = np.ones(5 + group.rank)
try:
    group.all_reduce(x)
except rw.MismatchError as error:
    os.write(1, f"{sorted(error.calls.items())} {(x == 1).all()}\\n".encode())  # one line, in one piece
"""
    ran = program(mpi, 2, code + ENDS, RANKWISE_CHECK="1")
    calls = [(rank, f"all_reduce(count={5 + rank}, dtype=float64, op=sum)") for rank in (0, 1)]
    assert ran.stdout.splitlines() == [f"{calls} True"] * 2, ran.stderr
    ran = program(mpi, 2, code.replace("5 + group.rank", "(3 - group.rank, 2 + group.rank)") + ENDS, RANKWISE_CHECK="1")
    calls = [(rank, f"all_reduce(count=6, dtype=float64, op=sum, shape={(3 - rank, 2 + rank)})") for rank in (0, 1)]
    assert ran.stdout.splitlines() == [f"{calls} True"] * 2, ran.stderr


@pytest.mark.slow
def test_every_algorithm(mpi: Path) -> None:
    """Forced, on both sides of every threshold."""
    code = f"""
sys.path.insert(0, {str(Path(__file__).parent)!r})
from forced_algorithms import check_all, expected
assert check_all(group).keys() == expected("mpi")
os.write(1, b"right\\n")
"""
    ran = program(mpi, 3, code, RANKWISE_CHECK="1")
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr


def test_another_launcher_is_named(mpi: Path) -> None:
    command = [str(mpi / "python"), "-m", "rankwise", "run", "-n", "2", "--backend", "mpi", "--"]
    code = "import rankwise as rw; rw.init(timeout=5)"
    ran = subprocess.run([*command, "python", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    assert "rankwise run says rank 1 of 2, but MPI says rank 0 of 1; start the ranks with the mpiexec of" in ran.stderr


def test_without_mpi4py() -> None:
    from rankwise import BackendUnavailable
    from rankwise.backends.mpi.communicator import open_communicator
    from rankwise.contract.job import Job

    try:
        import mpi4py  # noqa: F401
    except ImportError:
        with pytest.raises(BackendUnavailable, match=r"mpi4py.*pip install 'rankwise\[mpi\]'"):
            open_communicator(Job(), 1.0)
    else:
        with open_communicator(Job(), 1.0) as comm:
            comm.barrier()
