"""How a job ends: its exit code, its last line, and that no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "rankwise", "run"]
HASTY_RUN = ["env", "RANKWISE_GRACE=0.1", *RUN]  # where ranks do nothing more after it
PATIENT_RUN = ["env", "RANKWISE_GRACE=400", *RUN]  # where what ranks print after the first failure matters

# A program: after four operations one rank does what argv says while the others enter all_reduce, of which one
# comes when that rank has ended. If that rank has given its part by then, the others may complete this all_reduce, but
# never the next.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np, rankwise as rw
from rankwise.observe.jobs import jobs_of
group = rw.init()
for _ in range(3):
    group.barrier()
pids = group.all_gather(os.getpid())

def state(rank):
    return jobs_of(os.getpid())[0].ranks()[rank]

def killed_inside():
    while not (state(2).state.inside and state(2).state.operation.name == "all_reduce"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

if group.rank == 2:
    exec(sys.argv[1])
while group.rank == 0 and state(2).how in ("alive", "left") and os.path.exists(f"/proc/{pids[2]}"):
    time.sleep(0.01)
for _ in range(2):
    group.all_reduce(np.ones(3))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def pids_in(folder: Path, count: int) -> list[int]:
    """The pids in the `count` files of a folder, once they are there."""
    return [int(text) for text in until(lambda: _full(folder, count))]


def _full(folder: Path, count: int) -> list[str]:
    texts = [path.read_text() for path in folder.iterdir()]
    return texts if len(texts) == count and all(text.endswith("\n") for text in texts) else []


def until(condition: Callable[[], object], seconds: float = 20.0) -> object:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
    return value


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("deed", "code", "how"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL after all_gather #4"),
        ("raise ValueError('bad')", 1, "exited with status 1 after all_gather #4: ValueError: bad at <string>:1"),
        (
            "sys.exit('no such file')",
            1,
            "exited with status 1 after all_gather #4; its last line on stderr: 'no such file'",
        ),
        # tests/faults/test_endings.py has these ends too
        pytest.param("os.abort()", 134, "was killed by SIGABRT after all_gather #4", marks=pytest.mark.slow),
        pytest.param("sys.exit(7)", 7, "exited with status 7 after all_gather #4", marks=pytest.mark.slow),
        pytest.param("os._exit(255)", 255, "exited with status 255 after all_gather #4", marks=pytest.mark.slow),
        (
            "threading.Thread(target=killed_inside).start()",
            137,
            "was killed by SIGKILL in all_reduce #5",
        ),
    ],
)
def test_the_first_failure_is_blamed(program: str, deed: str, code: int, how: str) -> None:
    done = subprocess.run([*PATIENT_RUN, "-n", "4", program, deed], capture_output=True, text=True, timeout=150)
    assert done.returncode == code
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(rf"rankwise: rank 2 \(pid \d+\) {how}; the other 3 ranks were ended", last)
    said = {int(rank) for rank in re.findall(r"PeerLostError: rank 2 .*, while rank (\d) was in", done.stderr)}
    for ranks in re.findall(r"^rankwise: the same from ranks? (.*)", done.stderr, re.MULTILINE):
        said |= {0, 1, 3} if ranks == "0, 1, 3" else set(map(int, ranks.split(", ")))
    assert said == {0, 1, 3}, "the other ranks did not report it"


@pytest.mark.slow
def test_a_rank_that_ends_slowly_is_still_blamed() -> None:
    code = """
import atexit, os, sys, time

def others_end():  # runs after the group is closed
    while any(os.path.exists(f"/proc/{pid}") and "Z" not in open(f"/proc/{pid}/stat").read() for pid in others):
        time.sleep(0.01)

if os.environ["RANKWISE_RANK"] == "1":
    atexit.register(others_end)
import rankwise as rw
group = rw.init()
others = {int(pid) for pid in group.all_gather(os.getpid())} - {os.getpid()}
if group.rank == 1:
    sys.exit(9)
group.barrier()
"""
    done = subprocess.run([*PATIENT_RUN, "-n", "3", "python", "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 9
    assert re.match(r"rankwise: rank 1 \(pid \d+\) exited with status 9", done.stderr.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--tag-output"]])
def test_the_traceback_of_the_rank_to_blame_comes_last_and_none_is_mixed(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "program.py").write_text("""
import sys, traceback
import rankwise as rw

def deep(group, left):
    if left:
        deep(group, left - 1)
    elif group.rank == 2:
        raise LookupError("lost my keys")
    group.barrier()

group = rw.init()
try:
    raise ValueError("handled")
except ValueError:
    traceback.print_exc()
print("goes on", group.rank, file=sys.stderr)
deep(group, 40)
""")
    done = subprocess.run(
        [*PATIENT_RUN, "-n", "5", *options, tmp_path / "program.py"], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 1
    *lines, last = [re.sub(r"^\[\d\] ", "", line) for line in done.stderr.splitlines()]
    assert re.match(r"rankwise: rank 2 \(pid \d+\) exited with status 1", last)
    lines = [line for line in lines if not line.startswith("rankwise: ")]
    assert lines[-1] == "LookupError: lost my keys"
    assert {line for line in lines if line.startswith("goes on")} == {f"goes on {rank}" for rank in range(5)}
    begins = [number for number, line in enumerate(lines) if line.startswith("Traceback")]
    assert len(begins) == 10
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        frames = lines[begin + 1 : end]
        messages = [line for line in frames if not line.startswith((" ", "goes on"))]
        assert len(messages) == 1, "tracebacks are mixed"
        assert messages[0].startswith(("ValueError", "LookupError", "rankwise.PeerLostError"))


@pytest.mark.parametrize("options", [[], ["--tag-output"]])
def test_a_rank_that_only_lost_a_peer_is_not_blamed(tmp_path: Path, options: list[str]) -> None:
    """Even if the launcher cannot see which rank was lost, as on gloo."""
    (tmp_path / "program.py").write_text("""
import os, sys, time
from pathlib import Path

gone = Path(sys.argv[1])
if os.environ["RANKWISE_RANK"] == "0":
    from rankwise import PeerLostError
    from rankwise.system import failure_report
    failure_report.report_at_exit()  # as in rankwise.init
    gone.write_text(str(os.getpid()))
    raise PeerLostError("rank 1 closed its socket", rank=1, how="ended")
while not gone.exists() or "Z" not in Path(f"/proc/{gone.read_text() or os.getpid()}/stat").read_text():
    time.sleep(0.01)
raise LookupError("lost my keys")
""")
    done = subprocess.run(
        [*PATIENT_RUN, "-n", "2", *options, tmp_path / "program.py", tmp_path / "gone"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    *_, error, last = [line.removeprefix("[1] ") for line in done.stderr.splitlines()]
    assert error == "LookupError: lost my keys"
    assert re.match(r"rankwise: rank 1 \(pid \d+\) exited with status 1", last)
    assert "PeerLostError: rank 1 closed its socket" in done.stderr


def test_a_rank_that_aborts_the_group_because_of_a_loss_is_not_blamed() -> None:
    """With hierarchical, the ranks of a host learn in this way of a loss on another host."""
    code = """
import os, time
import rankwise as rw
group = rw.init()
if group.rank == 0:
    group.abort("a rank was lost")
    while 1 not in group.failed():
        time.sleep(0.01)
    raise rw.PeerLostError("a rank was lost")
try:
    while True:
        group.barrier()
except rw.PeerLostError:
    os._exit(3)
"""
    done = subprocess.run([*PATIENT_RUN, "-n", "2", "python", "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 3, done.stderr
    assert re.match(r"rankwise: rank 1 \(pid \d+\) exited with status 3", done.stderr.splitlines()[-1]), done.stderr


def test_the_traceback_of_running_ranks_is_shown_at_once_and_once(tmp_path: Path) -> None:
    code = """
import os, sys, time, traceback
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""
    go = tmp_path / "go"
    launcher = subprocess.Popen([*RUN, "-n", "2", "python", "-c", code, go], stderr=subprocess.PIPE, text=True)
    assert launcher.stderr is not None
    lines = iter(launcher.stderr.readline, "")
    assert "ZeroDivisionError: division by zero\n" in lines
    assert re.fullmatch(r"rankwise: the same from (rank [01]|ranks 0, 1)\n", next(lines))
    go.touch()
    assert launcher.communicate(timeout=100)[1] == ""
    assert launcher.returncode == 0


def test_a_rank_that_never_joined_is_blamed_too() -> None:
    done = subprocess.run([*RUN, "-n", "2", "sh", "-c", "exit 3"], capture_output=True, text=True, timeout=150)
    assert done.returncode == 3
    assert re.fullmatch(
        r"rankwise: rank [01] \(pid \d+\) exited with status 3(; the other rank was ended)?\n", done.stderr
    )


def test_the_others_may_go_on_for_the_grace() -> None:
    script = "[ $RANKWISE_RANK = 1 ] && exit 5; sleep 1.5; echo over"  # longer than the second by default
    done = subprocess.run([*PATIENT_RUN, "-n", "2", "sh", "-c", script], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (5, "over\n")


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    script = "[ $RANKWISE_RANK = 1 ] && sleep 0.3 && exit 5; trap '' TERM; sleep 1000; sleep 1000"
    done = subprocess.run([*HASTY_RUN, "-n", "3", "sh", "-c", script], capture_output=True, text=True, timeout=150)
    assert done.returncode == 5
    assert "rank 1" in done.stderr
    assert done.stderr.endswith("exited with status 5; the other 2 ranks were ended\n")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_reaches_ranks_in_a_collective(tmp_path: Path, signum: int, code: int) -> None:
    program = """
import os, sys, rankwise as rw
group = rw.init()
if group.rank == 0:
    import time; time.sleep(30)
open(f"{sys.argv[1]}/{group.rank}", "w").write(f"{os.getpid()}\\n")
group.barrier()
"""
    default = partial(signal.signal, signum, signal.SIG_DFL)  # though these tests be run by nohup
    command = [*RUN, "-n", "3", "python", "-c", program, tmp_path]
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    pids = pids_in(tmp_path, 2)
    time.sleep(0.1)
    start = time.monotonic()
    launcher.send_signal(signum)
    _, err = launcher.communicate(timeout=100)
    assert time.monotonic() - start < 20
    assert launcher.returncode == code
    assert err.splitlines()[-1] == f"rankwise: stopped by {signum.name}; 3 ranks were ended"
    assert ("KeyboardInterrupt" in err) == (signum == signal.SIGINT)
    assert not any(lives(pid) for pid in pids)


@pytest.mark.parametrize("cause", ["the launcher's SIGTERM", "the failure of another rank"])
def test_a_rank_that_ends_gets_one_signal_and_time_for_its_handler(tmp_path: Path, cause: str) -> None:
    program = """
import os, signal, sys, time
def save(signum, frame):
    print("begins", flush=True)
    time.sleep(2)
    print("ends", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{sys.argv[1]}/{os.environ['RANKWISE_RANK']}", "w").write(f"{os.getpid()}\\n")
while True:
    time.sleep(1)
"""
    words = [*RUN, "-n", "2", "--grace", "20", "python", "-c", program, tmp_path]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pids = pids_in(tmp_path, 2)
    if cause == "the launcher's SIGTERM":
        launcher.terminate()
        status, survivors = 128 + signal.SIGTERM, 2
    else:
        os.kill(pids[1], signal.SIGKILL)
        status, survivors = 128 + signal.SIGKILL, 1
    out, _ = launcher.communicate(timeout=100)
    assert (out.split(), launcher.returncode) == (["begins"] * survivors + ["ends"] * survivors, status)


def test_announcements_of_the_scheduler_are_passed_on(tmp_path: Path) -> None:
    program = """
import os, signal, sys
signals = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
open(f"{sys.argv[1]}/{os.environ['RANKWISE_RANK']}", "w").write(f"{os.getpid()}\\n")
print(*sorted([signal.sigwait(signals).name, signal.sigwait(signals).name]))
"""
    default = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, [signal.SIGUSR1, signal.SIGUSR2])
    words = [*RUN, "-n", "2", "python", "-c", program, tmp_path]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=default)
    pids_in(tmp_path, 2)
    launcher.send_signal(signal.SIGUSR1)
    launcher.send_signal(signal.SIGUSR2)
    assert launcher.communicate(timeout=100) == ("SIGUSR1 SIGUSR2\n" * 2, "")
    assert launcher.returncode == 0


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_second_signal_kills_at_once(tmp_path: Path, signum: int, code: int) -> None:
    script = "trap '' INT TERM; echo $$ > $0/$RANKWISE_RANK; sleep 30; sleep 30"
    launcher = subprocess.Popen([*RUN, "-n", "2", "sh", "-c", script, tmp_path], stderr=subprocess.PIPE)
    pids = pids_in(tmp_path, 2)
    launcher.send_signal(signum)
    time.sleep(0.2)
    assert all(lives(pid) for pid in pids)
    launcher.send_signal(signum)
    assert launcher.communicate(timeout=100)[1] == b"", "they were ended, and not killed at once"
    assert launcher.returncode == code
    assert not any(lives(pid) for pid in pids)


@pytest.mark.parametrize("what", ["ranks in a barrier", "children of the ranks"])
def test_nothing_outlives_a_killed_launcher(tmp_path: Path, what: str) -> None:
    if what == "ranks in a barrier":
        program = """
import os, sys, rankwise as rw
group = rw.init()
open(f"{sys.argv[1]}/{group.rank}", "w").write(f"{os.getpid()}\\n")
if group.rank:
    group.barrier()
import time; time.sleep(50)
"""
        words = ["python", "-c", program, str(tmp_path)]
    else:
        words = ["sh", "-c", "sh -c 'echo $$ > $0/$RANKWISE_RANK; sleep 50; true' $0; true", str(tmp_path)]
    launcher = subprocess.Popen([*RUN, "-n", "3", *words])
    pids = pids_in(tmp_path, 3)
    launcher.kill()
    launcher.wait()
    until(lambda: not any(lives(pid) for pid in pids))


def test_processes_left_by_ranks_are_ended(tmp_path: Path) -> None:
    script = """
sh -c 'echo $$ > $0/$RANKWISE_RANK.child; exec sleep 50' $0 &
setsid sh -c 'echo $$ > $0/$RANKWISE_RANK.daemon; exec sleep 50' $0 &
while [ $(cat $0/$RANKWISE_RANK.* 2>/dev/null | wc -l) -lt 2 ]; do sleep 0.01; done; echo done
"""
    start = time.monotonic()
    done = subprocess.run([*RUN, "-n", "2", "sh", "-c", script, tmp_path], capture_output=True, text=True, timeout=150)
    assert time.monotonic() - start < 40
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\ndone\n", "")
    assert not any(lives(pid) for pid in pids_in(tmp_path, 4))


def test_a_closed_output_pipe_ends_the_job() -> None:
    launcher = subprocess.Popen([*RUN, "-n", "2", "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"y\n"
    launcher.stdout.close()
    assert launcher.wait(timeout=100) == 128 + signal.SIGPIPE
    assert launcher.stderr is not None
    assert launcher.stderr.read() == b""
    launcher.stderr.close()


def test_a_finished_rank_is_not_ended_again() -> None:
    """A rank that succeeds long before the others does not affect the job, and its exit counts as success."""
    script = "[ $RANKWISE_RANK = 0 ] && exit 0; sleep 0.5; echo later"
    done = subprocess.run([*RUN, "-n", "2", "sh", "-c", script], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, "later\n", "")


def test_ranks_have_no_descriptors_but_their_own() -> None:
    """Only the standard streams, the segment and the failures; no descriptor of the launcher or of another rank."""
    code = """
import os
found = []
for fd in range(256):
    try:
        found.append(os.readlink(f"/proc/self/fd/{fd}").split(":")[0])
    except FileNotFoundError:
        pass
print(found)
"""
    done = subprocess.run([*RUN, "-n", "3", "python", "-c", code], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['/dev/null', 'pipe', 'pipe', '/memfd', '/memfd']\n" * 3


HANG = """
import sys, time
import numpy as np, rankwise as rw
group = rw.init()
group.barrier()

def save_checkpoint():
    exec(sys.argv[1])

if group.rank == 3:
    save_checkpoint()
group.all_reduce(np.ones(3))
"""


@pytest.mark.slow
def test_a_hang_is_reported_once_and_the_last_lines_are_about_the_missing_rank(tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(HANG)
    done = subprocess.run(
        [*RUN, "-n", "8", "--timeout", "3", "--trace", "t.json", "hang.py", "time.sleep(60)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    *lines, _, last = done.stderr.splitlines()
    while lines[-1].startswith("rankwise: "):  # several lines if some ranks end later than others
        assert re.fullmatch(r"rankwise: the same from ranks? [0-7, -]+", lines.pop())
    headline = "rank 3 did not reach all_reduce #2 within the timeout of 3 s"
    error = lines.index(f"rankwise.CollectiveTimeout: {headline}")
    waiting, missing, heading, *stack = lines[error + 1 :]
    assert re.fullmatch(r"  ranks 0-2, 4-7: in all_reduce #2 for .* s", waiting)
    assert re.fullmatch(r"  rank 3: outside any collective for .* s, last was barrier #1", missing)
    assert heading == "  Python stack of rank 3, innermost last:"
    assert any(line.endswith("in save_checkpoint") for line in stack)
    assert all(line.startswith("    ") for line in stack)
    assert last == f"rankwise: {headline}; all 8 ranks were ended"

    shown = subprocess.run(
        [sys.executable, "-m", "rankwise", "trace", tmp_path / "t.json"], capture_output=True, text=True, timeout=150
    )
    said = shown.stdout.splitlines()
    assert said[0] == f"{headline}; ranks 0-2, 4-7 waited for rank 3 in all_reduce #2"
    assert said[2:5] == [waiting, missing, heading]
    assert any(line.endswith("in save_checkpoint") for line in said[5:])


def test_a_message_that_never_arrives(tmp_path: Path) -> None:
    """A message has no number, so the text must not say "after recv #0"."""
    code = """
import sys, rankwise as rw
group = rw.init()
if group.rank == 0:
    group.send(1.0, 1)
else:
    group.recv((1,), 0)
    sys.exit(3)
group.recv((1,), 1)
"""
    done = subprocess.run([*RUN, "-n", "2", "python", "-c", code], capture_output=True, text=True, timeout=150)
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"rankwise: rank 1 \(pid \d+\) exited with status 3 after recv from rank 0, tag 0; .*ended", last
    )


@pytest.mark.parametrize(("limit", "n", "needed"), [(64, 30, r"1\d\d"), (8, 2, r"2\d"), (6, 2, r"2\d")])
def test_too_few_open_files_for_so_many_ranks(limit: int, n: int, needed: str) -> None:
    command = f"ulimit -n {limit}; exec {sys.executable} -m rankwise run -n {n} true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=150)
    assert done.returncode == 2
    assert re.fullmatch(
        rf"rankwise run: error: {n} ranks need about {needed} open files in the process that starts them, but its "
        rf"limit is {limit}; `ulimit -n {needed}` before the command raises it\n",
        done.stderr,
    )


def test_too_few_open_files_to_watch_the_peers() -> None:
    code = """
import os, resource, rankwise as rw
from rankwise.backends.native import shm
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, hard))
rw.init()
"""
    done = subprocess.run([*RUN, "-n", "8", "python", "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 1
    assert re.search(
        r"RankwiseError: watching other ranks takes up to 8 open files, and this process may have \d+ in all; "
        r"`ulimit -n \d+` before the command raises that",
        done.stderr,
    ), done.stderr


RING = """
import sys, threading, time
import numpy as np, rankwise as rw
g = rw.init()
if len(sys.argv) > 1 and g.rank == 0:
    threading.Timer(4, g.send, [np.zeros(10), g.world_size - 1]).start()
g.recv(np.zeros(10), (g.rank + 1) % g.world_size)
if g.rank:
    g.send(np.zeros(10), g.rank - 1)
"""
MPI4PY_RING = """
from mpi4py import MPI
import numpy as np
world, x = MPI.COMM_WORLD, np.zeros(10)
world.Recv(x, source=(world.rank + 1) % world.size, tag=3)
"""


@pytest.mark.parametrize(("options", "program", "tag"), [([], RING, 0), (["--mpi4py"], MPI4PY_RING, 3)])
def test_a_deadlock_ends_at_once_and_the_last_line_names_the_cycle(options: list[str], program: str, tag: int) -> None:
    """Long before the timeout, which is 300 s."""
    words = [*RUN, "-n", "3", *options, "python", "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150)
    first, second, third = (f"rank {r} waits for rank {(r + 1) % 3} (recv, tag {tag})" for r in range(3))
    cycle = f" can never be complete; a deadlock: {first}, {second}, and {third}; one of them must send first; "
    assert cycle in done.stderr.splitlines()[-1], done.stderr
    assert done.returncode == 1


def test_ranks_that_wait_for_a_send_of_another_thread_are_in_no_deadlock() -> None:
    done = subprocess.run([*RUN, "-n", "3", "python", "-c", RING, "later"], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stderr) == (0, "")
