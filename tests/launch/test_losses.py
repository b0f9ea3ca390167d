"""A job that loses ranks: it starts them again, goes on without them, or ends, and says so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from in_process import rankwise
from rankwise.launch.losses import END, GO_ON, RESTART, Losses
from rankwise.launch.rank_process import RankProcess

RUN = [sys.executable, "-m", "rankwise", "run"]

# A program that needs nothing of rankwise: each rank does what the options say for it and for its restart.
PROGRAM = """
import os, signal, sys, time
rank, restart = os.environ["RANKWISE_RANK"], os.environ.get("RANKWISE_RESTART")
print("rank", rank, "restart", restart)

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def fail():
    raise ValueError(f"bad in restart {restart}")

def wait_for(text):  # until the launcher has said it
    while text not in open(f"{sys.argv[2]}/stderr").read():
        time.sleep(0.01)

deeds = eval(sys.argv[1])
deeds.get((int(rank), restart and int(restart)), deeds.get(int(rank), lambda: None))()
"""


class Popen:
    """As much of a process as the rules for losses need."""

    pid = 4711


def process(number: int, replaced: RankProcess | None = None) -> RankProcess:
    rank = RankProcess(number, Popen(), replaced)  # type: ignore[arg-type]
    rank.returncode = -signal.SIGKILL
    return rank


def run(tmp_path: Path, *options: str, deeds: str, grace: float = 10.0) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["env", f"RANKWISE_GRACE={grace}", *RUN, *options, str(tmp_path / "program.py"), deeds, str(tmp_path)]
    with (tmp_path / "stderr").open("w") as stderr:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=150)
    done.stderr = (tmp_path / "stderr").read_text()
    return done


def notes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The launcher's own lines, without pids."""
    return [re.sub(r" \(pid \d+\)", "", line) for line in done.stderr.splitlines() if line.startswith("rankwise: ")]


def test_a_lost_rank_is_started_again_as_often_as_it_may() -> None:
    losses = Losses(4, restarts=2)
    first = process(1)
    second = process(1, first)
    third = process(1, second)
    assert [losses.add(rank) for rank in (first, process(3), second, third)] == [RESTART, RESTART, RESTART, END]
    assert losses.without == [third]


def test_the_others_go_on_while_enough_are_left() -> None:
    losses = Losses(4, keep_going=True, min_ranks=2)
    assert [losses.add(process(number)) for number in (3, 0, 1)] == [GO_ON, GO_ON, END]


def test_a_rank_that_cannot_be_kept_alive_is_left_out() -> None:
    losses = Losses(2, restarts=1, keep_going=True)
    first = process(0)
    assert [losses.add(first), losses.add(process(0, first))] == [RESTART, GO_ON]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--restarts", "-1"], "argument --restarts: expected a number of restarts of at least 0, got '-1'"),
        (["--restarts", "often"], "got 'often'"),
        (["--min-ranks", "3"], "min_ranks=3: expected 1 to 2, the number of ranks"),
        (["--min-ranks", "0"], "argument --min-ranks: expected a number of ranks of at least 1, got '0'"),
    ],
)
def test_options_that_cannot_be(options: list[str], said: str, capfd: pytest.CaptureFixture[str]) -> None:
    done = rankwise(capfd, "run", "-n", "2", *options, "true")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_replacements_take_the_lost_ranks_places(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "3", "--restarts", "2", deeds="{(1, 0): fail, (1, 1): kill, (2, 0): kill}")
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 restart 0", "rank 1 restart 0", "rank 1 restart 1", "rank 1 restart 2",
        "rank 2 restart 0", "rank 2 restart 1",
    ]  # fmt: skip
    said = notes(done)
    assert sorted(said[:-1]) == [
        "rankwise: rank 1 exited with status 1; started again (restart 1 of 2)",
        "rankwise: rank 1 was killed by SIGKILL; started again (restart 2 of 2)",
        "rankwise: rank 2 was killed by SIGKILL; started again (restart 1 of 2)",
    ]
    assert said[-1] == "rankwise: finished; started again: rank 1 (2 times), rank 2"
    assert done.stderr.count("ValueError: bad in restart 0") == 1


def test_a_rank_that_is_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "--restarts", "2", deeds="{0: lambda: time.sleep(60), 1: fail}", grace=0.1)
    assert done.returncode == 1
    assert notes(done)[-1] == (
        "rankwise: rank 1 exited with status 1, after 2 restarts; "
        "its last line on stderr: 'ValueError: bad in restart 2'; the other rank was ended"
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("ValueError")]
    assert errors == [f"ValueError: bad in restart {restart}" for restart in range(3)]


def test_the_others_are_left_to_go_on(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "3", "--keep-going", deeds="{1: kill, 2: lambda: time.sleep(0.5)}")
    assert done.returncode == 0
    assert notes(done)[-1] == "rankwise: finished without rank 1, which was killed by SIGKILL"


def test_fewer_ranks_than_needed_end_the_job(tmp_path: Path) -> None:
    deeds = "{0: lambda: time.sleep(60), 1: fail, 2: lambda: (wait_for('go on'), kill())}"
    done = run(tmp_path, "-n", "3", "--min-ranks", "2", deeds=deeds, grace=0.1)
    assert done.returncode == 128 + signal.SIGKILL
    assert notes(done) == [
        "rankwise: rank 1 exited with status 1; 2 ranks go on",
        "rankwise: rank 2 was killed by SIGKILL, which leaves fewer than 2 ranks (--min-ranks); 1 rank was ended",
    ]


def test_the_loss_that_ended_the_job_is_blamed_though_others_follow(tmp_path: Path) -> None:
    (tmp_path / "last.py").write_text(
        """
pid = ""
while not pid.endswith(";"):
    time.sleep(0.01)
    pid = open(sys.argv[2] + "/pid").read() if os.path.exists(sys.argv[2] + "/pid") else ""
while open(f"/proc/{pid[:-1]}/stat").read().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
time.sleep(0.5)  # until the launcher knows of its end
kill()
"""
    )
    deeds = (
        "{0: lambda: time.sleep(60), 1: kill,"
        " 2: lambda: (wait_for('go on'), open(sys.argv[2] + '/pid', 'w').write(f'{os.getpid()};'), sys.exit(5)),"
        " 3: lambda: exec(open(sys.argv[2] + '/last.py').read(), globals())}"
    )
    done = run(tmp_path, "-n", "4", "--min-ranks", "3", deeds=deeds, grace=30)
    assert done.returncode == 5
    assert notes(done)[-1].startswith("rankwise: rank 2 exited with status 5, which leaves fewer than 3 ranks")


def test_a_job_that_lost_all_ranks_failed(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "--keep-going", deeds="{0: fail, 1: fail}")
    assert done.returncode == 1
    assert done.stderr.count("\nValueError: bad in restart None") == 1
    assert re.search(r"^rankwise: the same from rank [01]$", done.stderr, re.MULTILINE)
    end = "exited with status 1, which leaves no rank; its last line on stderr: 'ValueError: bad in restart None'"
    assert notes(done)[-1].endswith(end)


def test_a_rank_that_ends_with_0_has_finished(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "2", "--restarts", "1", deeds="{0: lambda: sys.exit(0)}")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == ["rank 0 restart 0", "rank 1 restart 0"]


def test_rank_0_keeps_standard_input(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdin.readline().strip()); os._exit(3 * (os.environ['RANKWISE_RESTART'] == '0'))"
    file = tmp_path / "lines"
    file.write_text("one line\n")
    with file.open() as stdin:
        command = [*RUN, "-n", "1", "--restarts", "1", "python", "-c", code]
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0
    assert done.stdout == "one line\n\n"  # the replacement finds its end


def test_what_a_lost_rank_started_is_ended_with_it(tmp_path: Path) -> None:
    child = 'os.fork() or (open(f"{sys.argv[2]}/child", "w").write(str(os.getpid())), time.sleep(60))'
    written = 'os.path.exists(sys.argv[2] + "/child") and os.path.getsize(sys.argv[2] + "/child") > 0'
    until = f"{child}; [time.sleep(0.01) for _ in iter(lambda: {written}, True)]; kill()"
    (tmp_path / "deed.py").write_text(until)
    deeds = "{(0, 0): lambda: exec(open(sys.argv[2] + '/deed.py').read(), globals()), (0, 1): lambda: time.sleep(60)}"
    (tmp_path / "program.py").write_text(PROGRAM)
    launcher = subprocess.Popen(
        [*RUN, "-n", "1", "--restarts", "1", tmp_path / "program.py", deeds, tmp_path], stderr=subprocess.PIPE
    )
    try:
        assert launcher.stderr is not None
        assert b"started again (restart 1 of 1)" in launcher.stderr.readline()
        pid = int((tmp_path / "child").read_text())
        end = time.monotonic() + 20
        while _lives(pid):
            assert time.monotonic() < end, "the lost rank's child lives on"
            time.sleep(0.01)
    finally:
        launcher.send_signal(signal.SIGINT)
        launcher.wait(20)
        launcher.stderr.close()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_ctrl_c_starts_nothing_again(tmp_path: Path) -> None:
    code = f"import os, time; open('{tmp_path}/' + os.environ['RANKWISE_RESTART'], 'w').close(); time.sleep(60)"
    launcher = subprocess.Popen(
        [*RUN, "-n", "1", "--restarts", "9", "--keep-going", "python", "-c", code], stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "0").exists():
        time.sleep(0.01)
    launcher.send_signal(signal.SIGINT)
    _, said = launcher.communicate(timeout=100)
    assert launcher.returncode == 128 + signal.SIGINT
    assert said.splitlines()[-1] == "rankwise: stopped by SIGINT; 1 rank was ended"
    assert os.listdir(tmp_path) == ["0"]


RESTORED = """
import os, signal, time, rankwise as rw
group = rw.init()
if os.environ["RANKWISE_RESTART"] == "0":
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except rw.PeerLostError:
        group = group.restore()
group.barrier()
print("restored")
time.sleep(60)
"""


def test_status_shows_replacements() -> None:
    command = [*RUN, "-n", "2", "--restarts", "2", "python", "-c", RESTORED]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == "restored\n"
    status = [sys.executable, "-m", "rankwise", "status", str(launcher.pid)]
    plain, as_json = (
        subprocess.run([*status, *options], capture_output=True, text=True, timeout=150).stdout
        for options in ((), ("--json",))
    )
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=100)
    assert [(rank["state"], rank["restart"]) for rank in json.loads(as_json)[0]["ranks"]] == [
        ("alive", 0),
        ("alive", 1),
    ]
    assert re.search(r"^ +1 +\d+ +[-\d,]+ +alive \(restart 1\) ", plain, re.MULTILINE), plain


def test_the_trace_shows_the_losses(tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    run(tmp_path, "-n", "2", "--restarts", "1", "--trace", str(trace), deeds="{(1, 0): kill}")
    (loss,) = json.loads(trace.read_text())["losses"]
    assert (loss["rank"], loss["how"], loss["replaced"]) == (1, "was killed by SIGKILL", True)
    shown = subprocess.run(
        [sys.executable, "-m", "rankwise", "trace", trace], capture_output=True, text=True, timeout=150
    )
    assert re.search(r"^rank 1 .* was killed by SIGKILL +started again$", shown.stdout, re.MULTILINE)
    events = json.loads((tmp_path / "t.perfetto.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["lost: was killed by SIGKILL; started again"]


LEFT_OUT = """
import os, signal, sys, time
import numpy as np, rankwise as rw
group = rw.init()
group.barrier()
if group.rank == 1:
    exec(sys.argv[1])
else:
    group = group.shrink(exclude=[1])
    print("over", group.all_reduce(1))
"""

# So that ranks that were left out do not delay the test.
SOON = [
    sys.executable,
    "-c",
    "from rankwise.launch import local; from rankwise.tools.cli import main; local.LAST_LINES = 0.2; exit(main())",
    "run",
]


@pytest.mark.parametrize("deed", ["os.kill(os.getpid(), signal.SIGSTOP)", "while True: pass"])
def test_a_rank_that_was_left_out_is_ended_after_the_others(tmp_path: Path, deed: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEFT_OUT)
    command = [*SOON, "-n", "3", "--keep-going", str(program), deed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "over 2\nover 2\n"), done.stderr
    how = "was left out by the others and had to be ended after barrier #1"
    assert notes(done) == [f"rankwise: rank 1 {how}", f"rankwise: finished without rank 1, which {how}"]


def test_a_rank_that_only_a_subgroup_left_out_is_not_ended(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import time
import rankwise as rw
group = rw.init()
part = group.subgroup([0, 1, 2])
if group.rank != 1:
    part.shrink(exclude=[1])
group.all_reduce(1)
if group.rank == 1:
    time.sleep(2)
    print("rank 1 is done")
""")
    done = subprocess.run([*SOON, "-n", "3", "--keep-going", str(program)], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "rank 1 is done\n"), done.stderr


def test_without_keep_going_the_job_has_failed_without_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEFT_OUT)
    command = [*SOON, "-n", "3", "--restarts", "3", str(program), "os.kill(os.getpid(), signal.SIGSTOP)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 128 + signal.SIGTERM
    assert notes(done) == ["rankwise: rank 1 was left out by the others and had to be ended after barrier #1"]
