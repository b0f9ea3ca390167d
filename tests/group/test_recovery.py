"""Going on after a loss: failed, agree, shrink, restore and abort, on ranks that are threads or processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import rankwise as rw
from rankwise import CollectiveTimeout, Group, MismatchError, PeerLostError, UnsupportedError, _native
from rankwise.testing import run_ranks

both = pytest.mark.parametrize("backend", ["threads", "shm"])


@both
def test_after_a_mismatch_all_go_on(backend: str) -> None:
    def body(world: Group) -> None:
        with world.dup() as group:
            with pytest.raises(MismatchError):
                group.all_reduce(np.ones(30_000 if group.rank == 1 else 40_000))
            assert group.failed() == {}
            with group.shrink() as again:
                assert (again.rank, again.ranks, again.name) == (group.rank, (0, 1, 2), group.name)
                assert again.all_reduce(1) == 3
                assert group.successor is again
            with pytest.raises(MismatchError):
                group.barrier()

    run_ranks(body, 3, backend=backend)


@pytest.mark.slow
@both
def test_a_rank_that_left_is_lost_to_the_group_and_not_to_its_parent(backend: str) -> None:
    def body(world: Group) -> None:
        group = world.split(0, -world.rank)
        if group.rank == 1:
            group.close()
        else:
            with pytest.raises(PeerLostError):
                group.all_reduce(np.ones(100_000))
            assert group.failed() == {1: "left the group"}
            smaller = group.shrink()
            assert smaller.ranks == (3, 1, 0)  # in the group's order, numbered as in the world
            assert smaller.all_gather(smaller.rank).tolist() == [0, 1, 2]
            assert smaller.translate_rank(2, world) == 0
            assert smaller.split(0, -smaller.rank).all_reduce(1) == 3
        assert world.all_reduce(1) == 4

    run_ranks(body, 4, backend=backend)


@both
def test_agree(backend: str) -> None:
    def body(group: Group) -> None:
        assert group.agree(True) == 1
        assert group.agree(group.rank != 2) == 0
        assert group.agree(-1) == -1
        assert group.agree(~(1 << group.rank)) == ~0b111
        with pytest.raises(TypeError, match="flag='yes'"):
            group.agree("yes")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"flag=1844\d+: expected an int"):
            group.agree(2**64)
        assert group.agree(5) == 5  # a bad argument did no harm

    run_ranks(body, 3, backend=backend)


@pytest.mark.parametrize("backend", ["threads", "shm", pytest.param("gloo", marks=pytest.mark.slow)])
def test_agree_while_others_shrink(backend: str) -> None:
    if backend == "gloo":
        pytest.importorskip("torch")

    def body(world: Group) -> None:
        group = world.dup()
        if group.rank == 1:
            with pytest.raises(MismatchError, match="some ranks called agree"):
                group.agree(1)
        assert group.shrink().all_reduce(1) == 3

    run_ranks(body, 3, backend=backend)


@both
def test_abort_says_why_and_who(backend: str) -> None:
    def body(world: Group) -> None:
        group = world.dup()
        if group.rank == 1:
            group.abort("the loss is not a number")
        for call in (lambda: group.all_reduce(np.ones(10)), group.barrier):
            with pytest.raises(PeerLostError) as caught:
                call()
            assert (caught.value.rank, caught.value.how) == (1, "aborted the group: the loss is not a number")
        assert group.failed() == {}
        assert group.shrink().all_reduce(1) == 3
        assert world.all_reduce(1) == 3

    run_ranks(body, 3, backend=backend)


@pytest.mark.parametrize("begin", ["", "x"])
def test_a_reason_that_is_cut_within_a_character(begin: str) -> None:
    def body(world: Group) -> None:
        group = world.dup()
        if group.rank == 1:
            group.abort(begin + 2000 * "é")
        with pytest.raises(PeerLostError) as caught:
            group.barrier()
        assert caught.value.rank == 1
        assert caught.value.how.startswith(f"aborted the group: {begin}éé")

    run_ranks(body, 2, backend="shm")


def test_a_rank_that_does_not_come() -> None:
    def body(world: Group) -> None:
        group = world.dup()
        group.timeout = 0.3
        if world.rank == 2:
            world.barrier()
            with pytest.raises(PeerLostError) as caught:
                group.shrink()
            assert (caught.value.rank, caught.value.how.partition(",")[0]) == (2, "was excluded from the group")
            with pytest.raises(CollectiveTimeout):
                group.barrier()
            return
        assert group.agree(7) == 7
        assert list(group.failed()) == [2]
        assert group.shrink().ranks == (0, 1)
        world.barrier()

    run_ranks(body, 3)


def others_exclude_rank_1(world: Group) -> None:
    """Rank 1 lives, and knows of nothing until the others have done all their work."""
    group = world.dup()
    living = tuple(rank for rank in range(world.world_size) if rank != 1)
    if group.rank == 1:
        world.barrier()
        with pytest.raises(PeerLostError) as caught:
            group.shrink()
        assert (caught.value.rank, caught.value.how.partition(",")[0]) == (1, "was excluded from the group")
        return
    with pytest.raises(ValueError, match=rf"exclude={world.world_size}: expected a rank of the group"):
        group.shrink([1, world.world_size])
    with pytest.raises(ValueError, match=rf"exclude=\[{group.rank}\]: expected other ranks"):
        group.shrink([group.rank])
    if len(living) > 1:
        with pytest.raises(MismatchError, match=r"do not all exclude the same ranks; rank \d excludes (none|rank 1)"):
            group.shrink([1] if group.rank else [])
    smaller = group.shrink(exclude=[1, 1])
    assert (smaller.ranks, list(group.failed())) == (living, [1])
    assert smaller.all_reduce(np.ones(100_000))[-1] == len(living)
    assert smaller.shrink().ranks == living
    world.barrier()


@pytest.mark.parametrize(
    ("backend", "n"),
    [("threads", 2), ("threads", 4), ("shm", 4), *(pytest.param("gloo", n, marks=pytest.mark.slow) for n in (2, 4))],
)
def test_a_rank_that_lives_is_excluded(backend: str, n: int) -> None:
    if backend == "gloo":
        pytest.importorskip("torch")
    run_ranks(others_exclude_rank_1, n, backend=backend, timeout=60)


def test_restore_needs_a_launcher_that_starts_ranks_again() -> None:
    def body(group: Group) -> None:
        with pytest.raises(UnsupportedError, match=r"--restarts N.*shrink"):
            group.restore()
        assert group.all_reduce(1) == 2

    run_ranks(body, 2, backend="shm")


def run(tmp_path: Path, n: int, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text("import os, signal, sys\nimport numpy as np\nimport rankwise as rw\n" + textwrap.dedent(program))
    command = [sys.executable, "-m", "rankwise", "run", "-n", str(n), *options, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_killed_rank(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        4,
        """
        group = rw.init()
        part = group.split(group.rank % 2)
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.barrier()
            sys.exit("no error")
        except rw.PeerLostError:
            assert group.failed() == {2: "was killed by SIGKILL"}, group.failed()
        if group.rank % 2:
            assert part.all_reduce(1) == 2  # nobody died in this one
        smaller = group.shrink()
        group.close()
        assert smaller.ranks == (0, 1, 3)
        assert rw.all_reduce(1) == 3  # it is the default group now
        assert rw.init() is smaller
        halves = smaller.split(smaller.rank % 2)
        print(smaller.rank, halves.all_reduce(np.full(70_000, 1.0))[-1])
        """,
    )
    lines = sorted(line for line in done.stdout.splitlines())
    assert lines == ["0 2.0", "1 1.0", "2 2.0"], done.stderr


class Launcher:
    """A launcher that starts lost ranks again."""

    def __init__(self, n: int, program: Path, restarts: int = 1000) -> None:
        self.n, self.program, self.restarts = n, program, restarts
        self.segment: _native.Segment | None = _native.Segment.create(n)
        self.segment.announce_statuses()
        self.segment.announce_restarts()
        self.started = [0] * n
        self.processes = [self._start(rank) for rank in range(n)]

    def _start(self, rank: int) -> subprocess.Popen[str]:
        assert self.segment is not None
        fd = self.segment.fd
        environment = {
            **os.environ,
            "RANKWISE_RANK": str(rank),
            "RANKWISE_WORLD_SIZE": str(self.n),
            "RANKWISE_SEGMENT_FD": str(fd),
            "RANKWISE_LAUNCHER_PID": str(os.getpid()),
            "RANKWISE_RESTART": str(self.started[rank]),
            "OMP_NUM_THREADS": "1",
        }
        self.started[rank] += 1
        command = [sys.executable, str(self.program)]
        return subprocess.Popen(command, env=environment, pass_fds=(fd,), stdout=subprocess.PIPE, text=True)

    def run(self) -> dict[int, str]:
        """Until all ranks have finished, or were given up: the output of each."""
        assert self.segment is not None
        output: dict[int, str] = {}
        while len(output) < self.n:
            pid, status = os.wait()
            rank = next(r for r, process in enumerate(self.processes) if process.pid == pid)
            process = self.processes[rank]
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.stdout is not None
            text = process.stdout.read()
            process.stdout.close()
            self.segment.mark_ended(rank, process.returncode, pid, self.started[rank] - 1)
            if process.returncode == 0 or self.started[rank] > self.restarts:
                self.segment.give_up(rank)
                output[rank] = text
            else:
                self.processes[rank] = self._start(rank)
        self.segment = None
        return output


RESTORING = """
import os, signal, sys
import numpy as np
import rankwise as rw

group = rw.init(timeout=30)
restart = int(os.environ["RANKWISE_RESTART"])
turn = 0
while turn < 20:
    try:
        turn = int(group.all_reduce(turn, "max")) + 1
        if restart < {deaths} and group.rank == 1 and turn >= 5:
            os.kill(os.getpid(), signal.SIGKILL)
        assert group.all_reduce(np.ones(50_000))[0] == 3
    except rw.PeerLostError:
        group = group.restore()
        assert group.world_size == 3
assert rw.init() is group
part = group.split(group.rank % 2)
print(restart, group.ranks, part.all_reduce(1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("deaths", [1, 3])
def test_a_replacement_takes_the_place_of_a_lost_rank(tmp_path: Path, deaths: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(RESTORING.format(deaths=deaths))
    output = Launcher(3, program).run()
    assert output == {0: "0 (0, 1, 2) 2\n", 1: f"{deaths} (0, 1, 2) 1\n", 2: "0 (0, 1, 2) 2\n"}


def test_restore_after_shrink_restores_the_whole_job(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, signal, time
        import rankwise as rw
        group = rw.init(timeout=30)
        if os.environ["RANKWISE_RESTART"] == "0":
            if group.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                group.barrier()
            except rw.PeerLostError:
                group = group.shrink()
            assert group.all_reduce(1) == 2
            group = group.restore()
        print(group.all_gather(group.rank).tolist())
    """)
    )
    assert Launcher(3, program).run() == dict.fromkeys(range(3), "[0, 1, 2]\n")


def test_a_rank_that_is_given_up(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import os, signal
        import rankwise as rw
        group = rw.init(timeout=30)
        if group.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                try:
                    group.barrier()
                except rw.PeerLostError:
                    group = group.restore()
        except rw.PeerLostError as error:
            assert "the launcher does not start it again" in str(error), error
            print(error.rank, group.shrink().all_reduce(1))
    """)
    )
    assert Launcher(3, program, restarts=2).run() == {0: "", 1: "0 2\n", 2: "0 2\n"}


def survivors_go_on(group: Group) -> None:
    """One rank leaves; the others shrink, twice, and every family of operations works among them."""
    part = group.dup()
    if part.rank == 1:
        part.close()
        return
    with pytest.raises(rw.RankwiseError):
        part.all_reduce(np.ones(100_000))
    assert list(part.failed()) == [1]
    living = [rank for rank in range(part.world_size) if rank != 1]
    assert part.agree(~(1 << part.rank)) == ~sum(1 << rank for rank in living)
    for again in (part.shrink(), part.shrink().shrink()):
        assert again.ranks == tuple(living)
        x = np.arange(again.world_size * 1000.0) + again.rank
        assert again.all_gather_object(again.rank) == list(range(again.world_size))
        assert again.all_reduce(x.copy())[0] == sum(range(again.world_size))
        assert len(again.reduce_scatter(x)) == 1000
        assert again.split(0).all_reduce(1) == again.world_size
        again.send(again.rank, (again.rank + 1) % again.world_size)
        assert again.recv((), again.rank - 1 if again.rank else again.world_size - 1, dtype=int) >= 0
        again.close()
    part.close()


@pytest.mark.slow  # test_survivors_of_a_kill_on_gloo kills a rank as well
def test_survivors_on_gloo() -> None:
    pytest.importorskip("torch")
    run_ranks(survivors_go_on, 4, backend="gloo")


@pytest.mark.slow
def test_survivors_on_two_hosts() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))
    from hosts_in_threads import PLACEMENTS, opener

    for placement in PLACEMENTS.values():
        for body in (survivors_go_on, others_exclude_rank_1):
            run_ranks(body, len(placement), backend=opener(placement))


@pytest.mark.slow
def test_survivors_of_a_kill_on_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = run(
        tmp_path,
        4,
        """
        group = rw.init(timeout=20)
        group.barrier()
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.all_reduce(np.ones(100_000))
            sys.exit("no error")
        except rw.PeerLostError:
            smaller = group.shrink()
        print(smaller.ranks, smaller.all_reduce(1), group.failed())
        """,
        "--backend",
        "gloo",
    )
    # The others may agree on going on without rank 2 before a rank's own connection to it is closed.
    line = r"\(0, 1, 3\) 3 \{2: '(ended|was left out when the others agreed to go on)'\}\n"
    assert re.fullmatch(f"({line}){{3}}", done.stdout), done.stderr


def test_other_backends_cannot_restart_a_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import rankwise as rw\nrw.init('solo')\n")
    segment = _native.Segment.create(1)
    environment = {
        **os.environ,
        "RANKWISE_RANK": "0",
        "RANKWISE_WORLD_SIZE": "1",
        "RANKWISE_SEGMENT_FD": str(segment.fd),
        "RANKWISE_RESTART": "1",
    }
    command = [sys.executable, str(program)]
    done = subprocess.run(command, env=environment, pass_fds=(segment.fd,), capture_output=True, text=True)
    assert "UnsupportedError: restarting a rank is not supported by the solo backend" in done.stderr
