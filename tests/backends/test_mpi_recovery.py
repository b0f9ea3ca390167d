"""Going on after a loss over MPI: under Open MPI's `mpiexec --with-ft ulfm`, and the error everywhere else."""

from __future__ import annotations

import subprocess

import pytest

import mpi_launchers

START = """
import os, signal, sys, time
import numpy as np, rankwise as rw

world = rw.init("mpi", timeout=20)
me = world.rank

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def right(group, ranks):
    assert group.ranks == ranks, group.ranks
    n = len(ranks)
    assert group.all_reduce(np.ones(50_000))[0] == n
    assert group.all_gather(me).tolist() == list(ranks)
    with group.split(group.rank % 2) as part:
        assert part.all_reduce(1) == part.world_size
    alone = group.split(0 if group.rank == 0 else None)
    assert alone is None if group.rank else alone.all_reduce(1) == 1
    sent = group.isend(me, (group.rank + 1) % n)
    assert group.recv((), (group.rank - 1) % n, dtype=int) == ranks[group.rank - 1]
    sent.wait()
    group.barrier()

def raises(error, function):
    try:
        function()
    except error as found:
        return found
    raise AssertionError(f"no {error.__name__}")

def reducing(group, count=10):
    while True:
        group.all_reduce(np.ones(count))
"""

END = 'os.write(1, b"right\\n")\n'


def run(n: int, code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code on n ranks of Open MPI with ULFM."""
    programs = mpi_launchers.programs("openmpi")
    asked = subprocess.run([programs / "ompi_info"], capture_output=True, text=True, check=False).stdout
    if "FT MPI support: yes" not in asked:
        pytest.skip("this Open MPI was built without fault tolerance (ULFM)")
    launch = ("--with-ft", "ulfm")
    return mpi_launchers.run(programs, n, "-c", START + code + END, timeout=100, options=launch, **variables)


@pytest.mark.slow
def test_the_survivors_of_two_kills_go_on() -> None:
    """One rank is killed in an all_reduce, then another one in the group of the survivors."""
    code = """
group, living = world, [0, 1, 2, 3]
for lost in (2, 0):
    group.barrier()
    if me == lost:
        killed()
    number = living.index(lost)
    error = raises(rw.PeerLostError, lambda: reducing(group))
    assert (error.rank, error.operation) == (number, "all_reduce"), error
    assert group.failed() == {number: "ended"}
    living.remove(lost)
    assert group.agree(~(1 << 40 + me)) == ~sum(1 << 40 + rank for rank in living)
    smaller = group.shrink()
    right(smaller, tuple(living))
    assert group.successor is smaller and isinstance(raises(rw.PeerLostError, group.barrier), rw.PeerLostError)
    group.close()
    group = smaller
group.close()
"""
    ran = run(4, code)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 2), ran.stderr


@pytest.mark.slow
def test_after_other_failures_all_go_on() -> None:
    """After a mismatch, an abort, and a rank that comes too late."""
    code = """
with world.dup() as group:
    error = raises(rw.MismatchError, lambda: group.all_reduce(np.ones(3 + (me == 1))))
    assert "count=4" in error.calls[1] and group.failed() == {}
    right(group.shrink(), (0, 1, 2))
with world.dup() as group:
    if me == 1:
        group.abort("not a number")
    error = raises(rw.PeerLostError, lambda: reducing(group))
    assert (error.rank, error.how) == (1, "aborted the group: not a number") and group.failed() == {}
    right(group.shrink(), (0, 1, 2))
with world.dup() as group:
    group.timeout = 0.5
    if me == 1:
        world.recv((), 0, dtype=int)  # comes when the others have given up
    error = raises(rw.CollectiveTimeout, group.barrier)
    assert error.missing == (1,) and error.states[2].startswith("in barrier()"), error
    if me == 2:
        world.send(1, 0)  # it has its answer
    if me == 0:
        world.recv((), 2, dtype=int)
        world.send(1, 1)
    group.timeout = 20
    right(group.shrink(), (0, 1, 2))
world.close()
"""
    ran = run(3, code, RANKWISE_CHECK="1")
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("waits", ["reducing(world, 3_000_000)", "world.recv((), 2, dtype=int)", "world.split(me % 2)"])
def test_a_kill_in_another_operation(waits: str) -> None:
    code = f"""
if me == 2:
    world.isend(1.0, 0, tag=7).wait()
    killed()
if me == 0:
    world.recv((), 2, tag=7, dtype=float)
    time.sleep(1)
assert raises(rw.PeerLostError, lambda: {waits}).rank == 2
right(world.shrink(), (0, 1, 3))
"""
    ran = run(4, code)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_a_kill_in_a_reduction_of_ours(algorithm: str) -> None:
    """MPI does not add float16; a rank that exchanges no data with the killed one learns of it too."""
    code = """
def adding():
    while True:
        group.all_reduce(np.ones(3000, np.float16))
group = world
assert group.all_reduce(np.ones(3000, np.float16))[0] == 4
if me == 2:
    killed()
assert raises(rw.PeerLostError, adding).rank == 2
right(world.shrink(), (0, 1, 3))
"""
    ran = run(4, code, RANKWISE_ALGORITHM=f"all_reduce={algorithm}")
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr


@pytest.mark.slow
def test_a_rank_that_raises_is_lost_to_the_others() -> None:
    ran = run(3, "if me == 1:\n    1 / 0\nraises(rw.PeerLostError, world.barrier)\nright(world.shrink(), (0, 2))\n")
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 2), ran.stderr
    assert "the rank is ended: ZeroDivisionError" in ran.stderr


@pytest.mark.slow
def test_the_exit_status_if_every_rank_raises() -> None:
    """Although a rank that raises alone is killed, which mpiexec does not count as a failure of the job."""
    ran = run(3, "1 / 0\n")
    assert (ran.returncode, ran.stderr.count("ZeroDivisionError:")) == (1, 3), ran.stderr
    ran = run(3, "if me == 1:\n    killed()\nreducing(world)\n")
    assert (ran.returncode, ran.stderr.count("PeerLostError: rank 1 was lost")) == (1, 2), ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", mpi_launchers.LAUNCHERS)
def test_without_fault_tolerance(launcher: str) -> None:
    code = """
for function in (world.failed, world.shrink, lambda: world.agree(1)):
    error = raises(rw.UnsupportedError, function)
    assert "mpiexec --with-ft ulfm" in error.remedy and "does not report lost ranks" in error.why
"""
    ran = mpi_launchers.run(mpi_launchers.programs(launcher), 1, "-c", START + code + END, timeout=100)
    assert (ran.returncode, ran.stdout) == (0, "right\n"), ran.stderr
