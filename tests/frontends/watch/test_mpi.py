"""python -m rankwise.watch under Open MPI and MPICH: unchanged mpi4py programs get errors in place of hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

import mpi_launchers

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module", autouse=True)
def files_of_aborted_jobs() -> Iterator[None]:
    with mpi_launchers.files_of_aborted_jobs():
        yield


# What does not depend on the MPI; make test-all runs it on Open MPI, which takes longer, too.
ON_MPICH = pytest.mark.parametrize("mpi", [pytest.param("openmpi", marks=pytest.mark.slow), "mpich"], indirect=True)


@pytest.fixture(params=mpi_launchers.LAUNCHERS)
def mpi(request: pytest.FixtureRequest) -> Path:
    return mpi_launchers.programs(request.param)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets' paths are not too long."""
    with tempfile.TemporaryDirectory(prefix="rw-") as folder:
        yield Path(folder)


def watched(mpi: Path, folder: Path, n: int, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a program on n watched ranks. `comm` is its COMM_WORLD."""
    program = folder / "program.py"
    start = "import sys, time\nimport numpy as np\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
    program.write_text(start + dedent(code))
    return mpi_launchers.run(mpi, n, "-m", "rankwise.watch", *options, str(program), timeout=120)


def line(tmp_path: Path, number: int) -> str:
    """A line of the test's code, as reports name it."""
    return f"{tmp_path}/program.py:{number + 5}"


def test_bcast_against_allreduce(mpi: Path, tmp_path: Path) -> None:
    code = """
    x = np.zeros(4)
    comm.Barrier()
    if comm.rank == 1:
        comm.Allreduce(MPI.IN_PLACE, x)
    else:
        comm.Bcast(x, root=0)
    comm.Barrier()
    """
    ran = watched(mpi, tmp_path, 3, code)
    assert ran.returncode != 0
    report = (
        "rankwise.watch: the ranks' calls do not match: call #2 on COMM_WORLD\n"
        f"  rank 0: Bcast(count=4, dtype=float64, root=0) at {line(tmp_path, 6)}\n"
        f"  rank 1: Allreduce(count=4, dtype=float64, op=SUM) at {line(tmp_path, 4)}   <-- other operation\n"
        f"  rank 2: Bcast(count=4, dtype=float64, root=0) at {line(tmp_path, 6)}\n"
    )
    assert report in ran.stderr
    assert ran.stderr.count("do not match") == 1


@pytest.mark.parametrize(
    ("mine", "others", "differs"),
    [
        ("comm.Reduce(x, y, root=1)", "comm.Reduce(x, y, root=0)", "other root"),
        ("comm.allreduce(1, op=MPI.MAX)", "comm.allreduce(1)", "other op"),
        ("comm.Gather(x[:2], None)", "comm.Gather(x, np.empty(8))", "other count"),
        ("sys.exit()", "comm.Barrier()", "other operation"),
    ],
)
def test_calls_that_differ(tmp_path: Path, mine: str, others: str, differs: str) -> None:
    """Even if MPI itself ends without noticing."""
    mpi = mpi_launchers.programs("mpich")
    code = f"x, y = np.ones(4), np.ones(4)\nif comm.rank == 1:\n    {mine}\nelse:\n    {others}\n"
    ran = watched(mpi, tmp_path, 2, code)
    assert ran.returncode != 0
    assert f"<-- {differs}" in ran.stderr


@pytest.mark.parametrize("seconds", [0.12, 0.25])
def test_a_program_that_ends_while_a_mismatch_is_reported(tmp_path: Path, seconds: float) -> None:
    """The checker looks every 0.1 s, and waits 0.2 s before it shows what it has found."""
    mpi = mpi_launchers.programs("mpich")
    code = f"comm.allreduce(1, op=MPI.MAX if comm.rank else MPI.SUM)\ntime.sleep({seconds})\n"
    ran = watched(mpi, tmp_path, 2, code)
    assert ran.returncode != 0
    assert "<-- other op" in ran.stderr


def test_mismatch_within_a_subcommunicator(mpi: Path, tmp_path: Path) -> None:
    code = """
    row = comm.Split(comm.rank // 2).Dup()
    row.Barrier()
    row.Bcast(np.zeros(8), root=0 if comm.rank < 2 else comm.rank % 2)
    """
    ran = watched(mpi, tmp_path, 4, code)
    assert ran.returncode != 0
    report = (
        "call #2 on Dup #1 of Split #1 of COMM_WORLD (from rank 2)\n"
        f"  rank 2: Bcast(count=8, dtype=float64, root=0) at {line(tmp_path, 3)}\n"
        f"  rank 3: Bcast(count=8, dtype=float64, root=1) at {line(tmp_path, 3)}   <-- other root\n"
    )
    assert report in ran.stderr


@ON_MPICH
def test_a_rank_that_never_comes(mpi: Path, tmp_path: Path) -> None:
    """Its stack is shown, and those of ranks in a call that keeps the GIL, as mpi4py's first allreduce does."""
    code = """
    def compute():
        time.sleep(120)

    comm.barrier()
    if comm.rank == 1:
        compute()
    comm.allreduce(1)
    """
    ran = watched(mpi, tmp_path, 3, code, "--timeout", "8", "--abort")
    assert ran.returncode != 0
    assert re.search(r"rank [02] has been in allreduce\(op=SUM\) #2 on COMM_WORLD at .*:12 for", ran.stderr)
    assert re.search(r"  rank 1: in no call for .* s; its last was Barrier\(\) #1 on COMM_WORLD at .*:9\n", ran.stderr)
    compute = rf'stack of rank 1:\n  File "{tmp_path}/program.py", line 11, in <module>\n    compute\(\)\n'
    assert re.search(compute, ran.stderr)
    assert re.search(rf'File "{tmp_path}/program.py", line 12,? in <module>', ran.stderr)
    assert "frozen" not in ran.stderr


@pytest.mark.slow  # a second must be enough for what lasts a moment
def test_a_job_that_only_waits_goes_on(tmp_path: Path) -> None:
    mpi = mpi_launchers.programs("mpich")
    code = """
    if comm.rank == 0:
        time.sleep(4)
        comm.send("late", dest=1, tag=7)
    else:
        print(comm.recv(source=0, tag=7))
    """
    ran = watched(mpi, tmp_path, 2, code, "--timeout", "1")
    assert (ran.returncode, ran.stdout) == (0, "late\n"), ran.stderr
    assert ran.stderr.count("rank 1 has been in recv(source=0, tag=7) on COMM_WORLD") == 1


@ON_MPICH
def test_what_a_program_sees(mpi: Path, tmp_path: Path) -> None:
    """Communicators and requests behave as mpi4py's own."""
    code = """
    import os, pickle
    assert pickle.loads(pickle.dumps(comm)) is comm and isinstance(comm, MPI.Intracomm)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent, got = comm.isend({"from": comm.rank}, right, tag=4), comm.irecv(source=left, tag=4)
    assert isinstance(got, MPI.Request) and isinstance(MPI.REQUEST_NULL, MPI.Request)
    assert got.wait() == {"from": left}
    sent.wait()
    x, y = np.full(3, comm.rank), np.empty(3, int)
    MPI.Request.Waitall([comm.Isend(x, right), comm.Irecv(y, left)])
    assert (y == left).all()
    comm.Ibcast(y).Wait()
    persistent = comm.Send_init(x, MPI.PROC_NULL)
    assert isinstance(persistent, MPI.Prequest)
    persistent.Start()
    persistent.Wait()
    persistent.Free()
    half = comm.Split(comm.rank % 2)
    assert half.allreduce(1) == (comm.size + 1 - comm.rank % 2) // 2
    copy, request = half.Idup()
    request.Wait()
    copy.barrier()
    copy.Free()
    for _ in range(2000):
        half.Dup().Free()
    half.Free()
    grid = comm.Create_cart([comm.size], [True])
    assert isinstance(grid, MPI.Cartcomm) and grid.Sub([True]).size == comm.size
    pair = comm.group.Incl([0, 1])
    if comm.rank < 2:
        assert comm.Create_group(pair).allgather(comm.rank) == [0, 1]
    assert comm.Create(pair) == MPI.COMM_NULL or comm.rank < 2
    comm.Split_type(MPI.COMM_TYPE_SHARED).Barrier()
    MPI.COMM_SELF.Dup().Bcast(np.zeros(comm.rank))
    assert "Broadcast" in comm.Bcast.__doc__
    os.write(1, b"right\\n")
    """
    ran = watched(mpi, tmp_path, 3, code)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 3), ran.stderr
    assert "rankwise" not in ran.stderr


@ON_MPICH
def test_a_program_that_initializes_mpi_itself_and_forks(mpi: Path, tmp_path: Path) -> None:
    """A forked child is no rank: it neither records nor compares."""
    (tmp_path / "program.py").write_text(
        dedent("""
        import os
        import mpi4py
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        assert not MPI.Is_initialized()
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if os.fork() == 0:
            os._exit(0)
        assert os.wait()[1] == 0
        assert MPI.COMM_WORLD.Split(0, 0).allreduce(1) == 2
        MPI.Finalize()
        os.write(1, b"right\\n")
        """)
    )
    ran = mpi_launchers.run(mpi, 2, "-m", "rankwise.watch", str(tmp_path / "program.py"), timeout=120)
    assert (ran.returncode, ran.stdout) == (0, "right\n" * 2), ran.stderr


def test_status_shows_the_job(tmp_path: Path) -> None:
    mpi = mpi_launchers.programs("mpich")
    code = """
    if comm.rank == 0:
        import json, os, subprocess
        found = []
        while not any(rank["operation"] for rank in found):
            shown = subprocess.run([sys.executable, "-m", "rankwise", "status", "--json", str(os.getpid())],
                                   capture_output=True, check=True, timeout=60)
            (job,) = json.loads(shown.stdout)
            found = [rank for rank in job["ranks"] if rank["rank"] == 1]
            found = [rank for rank in found if "broadcast" in str(rank["operation"])]
        print("shown")
    comm.Bcast(np.zeros(4), root=0)
    """
    ran = watched(mpi, tmp_path, 2, code)
    assert (ran.returncode, ran.stdout) == (0, "shown\n"), ran.stderr


def test_an_error_of_the_program_keeps_its_traceback(tmp_path: Path) -> None:
    mpi = mpi_launchers.programs("mpich")
    ran = watched(mpi, tmp_path, 2, "if comm.rank == 1:\n    raise ValueError('no data')\ncomm.Barrier()\n")
    assert ran.returncode != 0
    trace = f'Traceback (most recent call last):\n  File "{tmp_path}/program.py", line 6, in <module>\n'
    assert trace in ran.stderr
    assert "  rank 1: Finalize() at the end of the program   <-- other operation\n" in ran.stderr


def test_the_trace_of_a_job_that_failed(tmp_path: Path) -> None:
    mpi = mpi_launchers.programs("mpich")
    code = "x = np.zeros(4)\nif comm.rank == 1:\n    comm.Barrier()\nelse:\n    comm.Allreduce(MPI.IN_PLACE, x)\n"
    file = tmp_path / "trace.json"
    watched(mpi, tmp_path, 2, code, "--trace", str(file))
    for _ in range(600):  # it is written when the rank has ended
        if file.read_text():
            break
        time.sleep(0.05)
    command = [sys.executable, "-m", "rankwise", "trace", str(file)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout.startswith("the ranks' calls do not match: call #1 on COMM_WORLD")
    assert "all_reduce #1" in shown.stdout


@pytest.mark.slow  # as above
def test_two_hosts(tmp_path: Path, short_path: Path) -> None:
    """Ranks of different hosts are not compared, and the reports say so. Here the hosts are pretended."""
    mpi = mpi_launchers.programs("mpich")
    for host in ("0", "1"):
        (short_path / host).mkdir(mode=0o700)
    code = """
    if comm.rank == 3:
        time.sleep(4)
    comm.Barrier()
    """
    start = f"""
    import os, sys
    rank = int(os.environ["PMI_RANK"])
    os.environ.update(MPI_LOCALRANKID=str(rank % 2), MPI_LOCALNRANKS="2")
    os.environ["RANKWISE_SOCKET_DIR"] = {str(short_path)!r} + "/" + str(rank // 2)
    os.execv(sys.executable, [sys.executable, "-m", "rankwise.watch", "--timeout", "1", "program.py"])
    """
    (tmp_path / "start.py").write_text(dedent(start))
    (tmp_path / "program.py").write_text("import time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n" + dedent(code))
    ran = mpi_launchers.run(mpi, 4, "start.py", timeout=120, options=("-wdir", str(tmp_path)))
    assert ran.returncode == 0, ran.stderr
    for here, late in ((0, 1), (2, 3)):
        assert re.search(rf"  rank {here}: in Barrier\(\) #1 on COMM_WORLD at program.py:7 for", ran.stderr), ran.stderr
        assert f"  rank {late}: in " in ran.stderr
    assert "  rank 3: in no call, and has made none\n" in ran.stderr
    assert ran.stderr.count("The job's ranks on other hosts are not shown") >= 2


@ON_MPICH
def test_ctrl_c_ends_the_job(mpi: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, time\nfrom mpi4py import MPI\nos.write(1, b'here\\n')\ntime.sleep(60)\n")
    command = [mpi / "mpiexec", "-n", "2", mpi / "python", "-m", "rankwise.watch", program]
    environment = {**os.environ, **mpi_launchers.ENVIRONMENT}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "here\n"
        job.send_signal(signal.SIGINT)
        assert job.wait(60) != 0


def test_options_that_are_wrong() -> None:
    mpi = mpi_launchers.programs("mpich")
    ran = mpi_launchers.run(mpi, 1, "-m", "rankwise.watch", "--timeout", "-1", "x.py", timeout=60)
    assert ran.returncode == 2
    assert "expected seconds above 0, got '-1'" in ran.stderr
