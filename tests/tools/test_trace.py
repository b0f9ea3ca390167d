"""Traces: what `rankwise run` keeps of a job, and how `rankwise trace` shows it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import in_process
from rankwise.observe.trace_file import Loss, RankTrace, Span, Trace, TracedOperation
from rankwise.tools.stragglers import group_operations, stragglers, summaries
from rankwise.tools.timeline import timeline
from rankwise.tools.trace import summary
from rankwise.tools.trace_tables import ranks as times_of_ranks
from rankwise.tools.trace_tables import spans as times_of_spans

RANKWISE = [sys.executable, "-m", "rankwise"]
MS = 1_000_000  # ns

# Rank 1 comes last to the second all_reduce: the others are in it when it begins.
PROGRAM = """
import os, signal, sys, time
import numpy as np
import rankwise as rw
from rankwise.observe.jobs import jobs_of
group = rw.init()
group.all_reduce(np.ones(2000))
with rw.trace.span("alone", lane="compute"):
    if group.rank == 1:
        while not all(rank.state.inside for rank in jobs_of(os.getpid())[0].ranks() if rank.rank != 1):
            time.sleep(0.01)
        time.sleep(0.3)
group.all_reduce(np.ones(3000))
if group.rank == 0:
    group.send(np.ones(10), 2, tag=4)
if group.rank == 2:
    group.recv(np.ones(10), 0, tag=4)
group.barrier()
if "die" in sys.argv and group.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if "raise" in sys.argv and group.rank == 1:
    {}["x"]
group.barrier()
"""


def rankwise(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return execute([*RANKWISE, *words], folder)


def execute(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "RANKWISE_TRACE"}
    env |= {"TMPDIR": str(folder / "tmp"), **environment}
    (folder / "tmp").mkdir(exist_ok=True)
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The program on 3 ranks; words before -- are options of the launcher, those behind the program's."""
    at = words.index("--") if "--" in words else len(words)
    (folder / "program.py").write_text(PROGRAM)
    command = [*RANKWISE, "run", "-n", "3", *words[:at], "program.py", *words[at + 1 :]]
    return execute(command, folder, RANKWISE_GRACE="400", **environment)


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_trace_of_a_good_run_is_kept_on_request(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, "--trace", "t.json") if how == "option" else run(tmp_path, RANKWISE_TRACE="t.json")
    assert done.returncode == 0
    assert done.stderr == "rankwise: the trace is in t.json; to see it: rankwise trace t.json\n"
    trace = Trace.read(tmp_path / "t.json")
    assert trace.failure is None
    assert [rank.rank for rank in trace.ranks] == [0, 1, 2]
    for rank in trace.ranks:
        assert rank.ended == "exited with status 0"
        names = [operation.name for operation in rank.operations if operation.sequence and operation.name != "init"]
        assert names == ["all_reduce", "all_reduce", "barrier", "barrier"]
        assert [(span.lane, span.name) for span in rank.spans] == [("compute", "alone")]
        (span,) = rank.spans
        reduces = [operation for operation in rank.operations if operation.name == "all_reduce"]
        assert reduces[0].begin <= span.begin <= span.end <= reduces[1].begin + 5 * MS
        assert all(trace.started <= operation.begin <= trace.written for operation in reduces)
    late = trace.ranks[1].spans[0]
    assert late.end - late.begin >= 290 * MS

    shown = rankwise("trace", "t.json", folder=tmp_path)
    assert shown.returncode == 0
    assert shown.stderr == ""
    assert re.search(r"^3 ranks for .*: .*program\.py$", shown.stdout, re.MULTILINE)
    assert re.search(r"^who came last to the 4 operations", shown.stdout, re.MULTILINE)
    first = next(line for line in shown.stdout.splitlines() if line.endswith("in all_reduce #2"))
    assert first.split()[0] == "1"
    assert re.search(r"^all_reduce float64 sum  23 KiB +3 .* rank 1$", shown.stdout, re.MULTILINE)
    picture = json.loads((tmp_path / "t.perfetto.json").read_text())
    rows = {event["args"]["name"] for event in picture["traceEvents"] if event["name"] == "thread_name"}
    assert rows == {"collectives", "messages", "compute"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "t.json", "t.perfetto.json", "tmp"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_failure_is_kept_among_the_temporary_files(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "die")
    assert done.returncode == 137
    *_, where, last = done.stderr.splitlines()
    assert last.startswith("rankwise: rank 1 ")
    assert where.startswith("rankwise: the last operations of each rank: rankwise trace ")
    path = Path(where.split()[-1])
    assert path.parent == tmp_path / "tmp" / f"rankwise-traces-{os.geteuid()}"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    trace = Trace.read(path)
    assert trace.failure == "rank 1 was killed by SIGKILL after barrier #3"
    assert trace.ranks[1].ended == "was killed by SIGKILL"
    assert trace.ranks[0].ended == "exited with status 1"
    assert trace.ranks[0].spans == []  # nobody asked for them
    shown = rankwise("trace", str(path), "-o", "timeline.json", folder=tmp_path)
    assert shown.stdout.startswith("rank 1 was killed by SIGKILL after barrier #3")
    assert re.search(r"^ +1 +was killed by SIGKILL  outside any collective .*barrier #3", shown.stdout, re.MULTILINE)
    assert (tmp_path / "timeline.json").exists()


def test_the_headline_names_the_programs_own_exception(tmp_path: Path) -> None:
    done = run(tmp_path, "--", "raise")
    assert done.returncode == 1
    path = Path(done.stderr.splitlines()[-2].split()[-1])
    headline = rankwise("trace", str(path), folder=tmp_path).stdout.splitlines()[0]
    where = re.escape(str(tmp_path / "program.py"))
    assert re.match(rf"rank 1 exited with status 1 after barrier #3: KeyError: 'x' at {where}:\d+", headline)


def test_only_this_user_can_read_traces(tmp_path: Path) -> None:
    (tmp_path / "t.json").touch(mode=0o644)
    folder = tmp_path / "tmp" / f"rankwise-traces-{os.geteuid()}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    run(tmp_path, "--trace", "t.json")
    run(tmp_path, "--", "die")
    (kept,) = folder.iterdir()
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "t.json", folder, kept)]
    assert modes == [0o600, 0o700, 0o600]


def test_a_link_is_no_place_for_a_trace(tmp_path: Path) -> None:
    """Whoever can write to the folder could lead the trace into any file of this user."""
    (tmp_path / "file").write_text("precious")
    (tmp_path / "t.json").symlink_to("file")
    done = run(tmp_path, "--trace", "t.json")
    assert (done.returncode, done.stderr) == (
        2,
        "rankwise run: error: --trace t.json: expected a file, found a symbolic link; name the file that it leads to\n",
    )
    with pytest.raises(OSError, match="symbolic links"):  # also if it is put there while the job runs
        Trace([], 0, 0, None, [], []).write(tmp_path / "t.json")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_another_users_file_is_no_place_for_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("theirs")
    os.chown(tmp_path / "t.json", 12345, -1)
    with pytest.raises(PermissionError, match="it belongs to user 12345"):
        Trace([], 0, 0, None, [], []).write(tmp_path / "t.json")
    assert (tmp_path / "t.json").read_text() == "theirs"


def test_a_trace_may_go_to_a_device() -> None:
    Trace([], 0, 0, None, [], []).write(Path("/dev/null"))
    assert os.stat("/dev/null").st_mode & 0o777 == 0o666


def test_only_the_newest_failures_stay(tmp_path: Path) -> None:
    folder = tmp_path / "tmp" / f"rankwise-traces-{os.geteuid()}"
    folder.mkdir(parents=True)
    for number in range(12):
        (folder / f"{number}.json").write_text("{}")
        os.utime(folder / f"{number}.json", (number, number))
    run(tmp_path, "--", "die")
    assert len(list(folder.iterdir())) == 10
    assert not (folder / "2.json").exists()
    assert (folder / "3.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--trace", "none", "--", "die"), ()])
def test_nothing_is_kept(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = run(tmp_path, *words)
    assert "trace" not in done.stderr.replace("Traceback", "")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_job_without_operations_leaves_no_trace(tmp_path: Path) -> None:
    done = rankwise("run", "-n", "2", "--", "sh", "-c", "exit 3", folder=tmp_path)
    assert done.returncode == 3
    assert list((tmp_path / "tmp").iterdir()) == []


def test_an_unwritable_file(tmp_path: Path) -> None:
    done = run(tmp_path, "--trace", "nowhere/t.json")
    assert done.returncode == 2
    assert done.stderr == (
        "rankwise run: error: --trace nowhere/t.json: expected a file in a folder that can be written to\n"
    )


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "rankwise trace 0"}', '{"format": "rankwise trace 1"}'])
def test_files_that_are_not_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text(text)
    done = in_process.rankwise(capfd, "trace", "t.json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"rankwise trace: error: t.json (is|has) .*expected .*\n", done.stderr)
    done = in_process.rankwise(capfd, "trace", "absent.json")
    assert done.returncode == 1
    assert "No such file" in done.stderr


def test_where_no_timeline_can_be_written_the_report_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    Trace(["program"], 0, 0, None, [], []).write(tmp_path / "t.json")
    words = ["trace", str(tmp_path / "t.json"), "-o", str(tmp_path / "none" / "t"), "--html", str(tmp_path / "t.html")]
    done = in_process.rankwise(capfd, *words)
    assert done.returncode == 1
    assert done.stdout.startswith("nothing failed: ")
    assert done.stderr == (
        f"rankwise trace: error: {tmp_path}/none/t cannot be written: No such file or directory; name a place with -o "
        "or --html\n"
    )
    assert (tmp_path / "t.html").exists()


@pytest.mark.parametrize("words", [("-o", "t.json"), ("--html", "./t.json"), ("-o", "t", "--html", "t")])
def test_no_output_replaces_the_trace_or_the_other_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Trace(["program"], 0, 0, None, [], []).write(Path("t.json"))
    done = in_process.rankwise(capfd, "trace", "t.json", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("rankwise trace: error: expected FILE, -o and --html to be different files")
    assert os.listdir() == ["t.json"]
    Trace.read(Path("t.json"))


# ---- the arithmetic, on traces made up ----


def operation(sequence: int, begin: int, end: int | None, waited: int = 0, **more: Any) -> TracedOperation:
    """A barrier of the group of all, its times in ms."""
    barrier = TracedOperation(
        number=sequence,
        name="barrier",
        group=0,
        group_name="0",
        sequence=sequence,
        dtype=None,
        op=None,
        root=None,
        peer=None,
        tag=None,
        bytes=0,
        begin=begin * MS,
        end=None if end is None else end * MS,
        waited=waited * MS,
        failed=False,
        background=False,
    )
    return replace(barrier, **more, group_name=f"'world.{more['group']}'" if "group" in more else "0")


def trace(*ranks: list[TracedOperation], spans: list[Span] | None = None) -> Trace:
    told = [
        RankTrace(rank, 100 + rank, "exited with status 0", "", operations, spans or [])
        for rank, operations in enumerate(ranks)
    ]
    return Trace(["program"], 0, 100 * MS, None, [], told)


def test_the_last_rank_and_the_waiting_times_of_the_others() -> None:
    made = trace(
        [operation(1, 0, 10, waited=9), operation(2, 20, 21)],
        [operation(1, 9, 10), operation(2, 11, 21, waited=7)],
        [operation(1, 5, 10, waited=3), operation(2, 12, 21, waited=8)],
    )
    found = group_operations(made)
    assert [(operation.sequence, operation.late, operation.waited) for operation in found] == [
        (1, (1,), (9 + 3) * MS),
        (2, (0,), (7 + 8) * MS),
    ]
    assert [(one.rank, one.times, one.waited) for one in stragglers(found, range(3))] == [
        (0, 1, 15 * MS),
        (1, 1, 12 * MS),
        (2, 0, 0),
    ]
    (kind,) = summaries(made, found)
    assert (kind.calls, kind.spent, kind.waited) == (6, (10 + 1 + 5 + 1 + 10 + 9) * MS, (9 + 7 + 3 + 8) * MS)


def test_a_rank_that_never_arrives_is_the_last() -> None:
    made = trace(
        [operation(1, 0, 1), operation(2, 2, None, waited=90)],
        [operation(1, 0, 1)],
        [operation(1, 0, 1), operation(2, 4, None, waited=88)],
    )
    (_, second) = group_operations(made)
    assert (second.late, second.waited) == ((1,), 178 * MS)
    assert stragglers([second], range(3))[0].rank == 1


def test_overwritten_operations_are_left_out() -> None:
    """Rank 1 has begun more operations since, for example messages, so its trace begins later."""
    made = trace([operation(1, 0, 1), operation(2, 2, 3)], [operation(2, 2, 3)])
    assert [operation.sequence for operation in group_operations(made)] == [2]


def test_a_subgroups_operations_involve_only_its_ranks() -> None:
    made = trace(
        [operation(1, 0, 1), operation(1, 2, 5, waited=2, group=1)],
        [operation(1, 0, 1)],
        [operation(1, 0, 1), operation(1, 4, 5, group=1)],
    )
    (_, second) = group_operations(made)
    assert (second.name, second.late, second.waited) == ("barrier #1 of group 'world.1' (ranks 0, 2)", (2,), 2 * MS)


def test_the_timeline() -> None:
    made = trace(
        [operation(1, 10, 20, waited=4), operation(2, 15, 30, group=1), operation(0, 12, None, peer=1, tag=3)],
        spans=[Span("compute", "forward", 11 * MS, 13 * MS)],
    )
    events = timeline(made)["traceEvents"]
    slices = {(event["name"], event["tid"]): event for event in events if event["ph"] == "X"}
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert list(rows) == ["collectives", "collectives 2", "messages", "compute"]
    whole = slices["barrier #1", rows["collectives"]]
    assert (whole["ts"], whole["dur"], whole["args"]["waited_us"]) == (0, 10_000, 4_000)
    assert (slices["waiting", rows["collectives"]]["ts"], slices["waiting", rows["collectives"]]["dur"]) == (0, 4_000)
    assert (slices["moving", rows["collectives"]]["ts"], slices["moving", rows["collectives"]]["dur"]) == (4_000, 6_000)
    assert slices["barrier #2", rows["collectives 2"]]["args"]["group"] == 1
    message = slices["barrier", rows["messages"]]
    assert (message["ts"], message["dur"]) == (2_000, 88_000)
    assert message["args"]["unfinished"]
    assert slices["forward", rows["compute"]]["ts"] == 1_000


def init() -> TracedOperation:
    return operation(0, 0, 0, name="init")


def test_the_first_line_says_that_nothing_failed() -> None:
    made = trace([init(), operation(1, 1, 2), operation(2, 3, 4)], [init(), operation(1, 1, 2), operation(2, 3, 4)])
    assert summary(made)[0] == "nothing failed: 4 operations recorded in 100 ms"
    made = replace(made, losses=[Loss(1, 101, "was killed by SIGKILL after barrier #1", 20 * MS, True)])
    assert summary(made)[0] == (
        "finished, after rank 1 was killed by SIGKILL after barrier #1 at 20 ms: 4 operations recorded in 100 ms"
    )


@pytest.mark.parametrize(
    ("others", "last", "waits"),
    [
        # Rank 1 has never called anything; it has died within the call; rank 0 waits for a message that it never sent.
        ([], operation(1, 2, 9, failed=True), "rank 0 waited for rank 1 in barrier #1"),
        ([operation(1, 1, None)], operation(1, 2, 9, failed=True), "rank 0 waited for rank 1 in barrier #1"),
        ([], operation(0, 2, None, name="recv", peer=1, tag=0), "rank 0 waited for rank 1 in recv"),
        ([], operation(0, 2, None, name="recv", peer=-1, tag=0), "rank 0 waited for any rank in recv"),
        # The receive has timed out.
        (
            [],
            operation(0, 2, 9, name="recv", peer=1, tag=0, failed=True, background=True),
            "rank 0 waited for rank 1 in recv",
        ),
    ],
)
def test_the_first_line_says_who_was_waited_for(
    others: list[TracedOperation], last: TracedOperation, waits: str
) -> None:
    made = trace([init(), last], [init(), *others])
    made = replace(made, failure="rank 1 died\n  more about it", losses=[Loss(1, 101, "died", 5 * MS, False)])
    head, _, more, *_ = summary(made)
    assert head == f"rank 1 died; {waits}"
    assert more == "  more about it"


def test_a_job_that_was_stopped_while_it_hung(tmp_path: Path) -> None:
    """Rank 1 never comes; the operator ends the job when both ranks stand still."""
    program = """
import os, time
import rankwise as rw
from rankwise.observe.jobs import jobs_of
group = rw.init()
group.barrier()
if group.rank == 1:
    while not jobs_of(os.getpid())[0].ranks()[0].state.inside:
        time.sleep(0.01)
    print("hangs", flush=True)
    time.sleep(60)
group.barrier()
"""
    (tmp_path / "program.py").write_text(program)
    command = [*RANKWISE, "run", "-n", "2", "--trace", "t.json", "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"hangs\n"
        launcher.terminate()
    trace = Trace.read(tmp_path / "t.json")
    lines = summary(trace)
    assert lines[0] == "stopped by SIGTERM; rank 0 waited for rank 1 in barrier #2"
    assert "who came last to the 1 operation that all ranks began; some ranks never began 1 more" in lines


def test_the_time_of_a_rank_that_was_ended_counts_to_its_end() -> None:
    made = trace([operation(1, 0, 10)], [operation(1, 0, 10)], [operation(1, 0, 10)])
    made.ranks[0] = replace(made.ranks[0], ended="was killed by SIGTERM")
    made.ranks[1] = replace(made.ranks[1], ended="was killed by SIGKILL")
    made = replace(made, losses=[Loss(1, 101, "was killed by SIGKILL", 50 * MS, False)])
    assert [row[5] for row in times_of_ranks(made)[1:]] == ["90 ms", "40 ms", "0 us"]


def test_a_failure_for_which_nobody_waited() -> None:
    made = replace(trace([init(), operation(1, 1, 2)], [init(), operation(1, 1, 2)]), failure="rank 1 exited")
    assert summary(made)[0] == "rank 1 exited"


def test_the_time_of_each_rank_and_of_each_span() -> None:
    spans = [Span("cpu", "step", 0, 4 * MS), Span("cpu", "step", 10 * MS, 12 * MS), Span("gpu", "copy", 0, 7 * MS)]
    made = trace([operation(1, 4, 10, waited=5)], [], spans=spans)
    made.ranks[1] = replace(made.ranks[1], spans=spans[:1])
    assert times_of_ranks(made)[1:] == [("0", "1", "6 ms", "5 ms", "0 us", "2 ms", "25 %")]
    assert times_of_spans(made)[1:] == [
        ("step", "cpu", "3", "3.3 ms", "10 ms", "6 ms on rank 0"),
        ("copy", "gpu", "1", "7 ms", "7 ms", "7 ms on rank 0"),
    ]
    assert "spans of the program, the longest first" in summary(made)


@pytest.mark.parametrize(
    ("operations", "row"),
    [
        # The messages of a `batch` were complete before it waited for them, and two of them were in progress at once.
        (
            [operation(0, 0, 30, background=True), operation(0, 20, 60, background=True), operation(0, 60, 80)],
            ("3", "20 ms", "0 us", "60 ms", "0 us", "0 %"),
        ),
        # Two threads wait in operations at once.
        (
            [operation(1, 0, 60, waited=50), operation(2, 40, 80, waited=40)],
            ("2", "80 ms", "80 ms", "0 us", "0 us", "0 %"),
        ),
        # A message is in progress before, within and after a collective, and nothing is for 20 ms.
        (
            [operation(1, 10, 30), operation(0, 0, 60, background=True), operation(2, 80, 100)],
            ("3", "40 ms", "0 us", "40 ms", "20 ms", "20 %"),
        ),
    ],
)
def test_time_in_several_operations_at_once_counts_once(operations: list[TracedOperation], row: tuple[str]) -> None:
    assert times_of_ranks(trace(operations))[1:] == [("0", *row)]


def test_an_empty_trace() -> None:
    assert summary(trace([]))[-1] == "the trace holds no operation that all ranks began"
    assert timeline(trace([]))["traceEvents"]
