"""`rankwise status`: where every rank of a running job is, without disturbing it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rankwise.observe.jobs import RankView, RunningJob, jobs_of, running_jobs
from rankwise.tools.cli import Parser
from rankwise.tools.layout import columns, one_line, row_width, width
from rankwise.tools.units import amount, duration

REFRESH = 0.25  # seconds between two updates of --watch

DESCRIPTION = """\
Show the state of every rank of a running job: whether it is alive or how it ended, which operation it
is in and since when, the bytes that its operations have moved, and how long it has waited for other
ranks; "restart 2" is the second replacement of a lost rank. A > marks the ranks that the others wait
for. The job is not disturbed: its memory is mapped read-only.
"""

EPILOG = """\
PID is the process id of the launcher or of any rank; without it all jobs of this user on this host
are shown. The column CPUs lists the CPUs that each rank may use (rankwise run --bind); the column moved
counts the bytes of each rank's own arrays; "of group 2" means a group that split made. If a job runs on
several hosts (rankwise run --nnodes), only its ranks on this host are shown.

examples:
  rankwise status                  all jobs
  rankwise status 4711             one job
  rankwise status --watch          update until the jobs end or Ctrl-C
  rankwise status --json | jq '.[].ranks[] | select(.behind)'
"""

Line = tuple[str, bool]  # the text, wrapped to the terminal's width, and whether the others wait for this rank


def main(argv: Sequence[str]) -> int:
    """Run `rankwise status` with these arguments; returns the exit code."""
    parser = Parser(
        prog="rankwise status",
        usage="rankwise status [options] [PID]",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("pid", nargs="?", type=int, metavar="PID", help="of the launcher or of a rank")
    parser.add_argument("--watch", action="store_true", help="update it continuously (needs rich)")
    parser.add_argument("--json", action="store_true", help="print it as JSON, times in seconds")
    options = parser.parse_args(argv)
    if options.watch and options.json:
        parser.error("--watch and --json: expected one of them")
    try:
        jobs = running_jobs() if options.pid is None else jobs_of(options.pid)
    except (ProcessLookupError, PermissionError) as error:
        return _refuse(str(error))
    if options.json:
        print(json.dumps([_as_json(job) for job in jobs], indent=1))
        return 0
    if options.watch:
        return _watch(options.pid, jobs)
    if not jobs:
        return _refuse(
            "no job of this user runs on this host by rankwise run or over shm (only root sees the jobs of others)"
        )
    print("\n\n".join("\n".join(_plain(line) for line in _lines(job)) for job in jobs))
    return 0


def _refuse(why: str) -> int:
    print(f"rankwise status: error: {why}", file=sys.stderr)
    return 1


def _watch(pid: int | None, jobs: list[RunningJob]) -> int:
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        return _refuse("--watch needs rich: pip install rich")
    if not sys.stdout.isatty():
        return _refuse("--watch needs a terminal; without it the state is printed once")

    def picture() -> Text:
        text = Text(no_wrap=True, overflow="crop")
        for job in jobs:
            for words, behind in _lines(job):
                text.append(words + "\n", style="bold red" if behind else "")
            text.append("\n")
        text.append(time.strftime("%H:%M:%S"), style="dim")
        text.append(", Ctrl-C ends" if jobs else ": no job of this user runs", style="dim")
        return text

    try:
        with Live(picture(), auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                time.sleep(REFRESH)
                jobs = running_jobs() if pid is None else jobs_of(pid)
                live.update(picture(), refresh=True)
    except ProcessLookupError:
        print("the job has ended")
    except KeyboardInterrupt:
        print()
    return 0


def _plain(line: Line) -> str:
    return line[0]


def _lines(job: RunningJob) -> list[Line]:
    """A title and a table; each line comes with whether the others wait for its rank."""
    ranks = job.ranks()
    age = max(1e-9, time.time() - job.view.started / 1e9)
    where = f"launcher {job.launcher}" if job.launcher else "no launcher"
    here = job.view.world_size
    count = f"{here} ranks" if job.world_size == here else f"{here} of {job.world_size} ranks (the ones on this host)"
    title = f"{count} for {duration(age)}, {where}: "
    title += one_line(job.command, width() - len(title))
    rows = [("rank", "pid", "CPUs", "state", "moved", "waited", "where")]
    rows += [
        (
            f"{'> ' if rank.behind else '  '}{rank.rank}",
            str(rank.pid) if rank.pid else "",
            rank.cpus,
            f"{rank.how} (restart {rank.restart})" if rank.restart else rank.how,
            amount(rank.state.bytes),
            f"{duration(rank.state.waited / 1e9)} {100 * rank.state.waited / 1e9 / age:3.0f} %",
            rank.state.description if rank.state.joined else "",
        )
        for rank in ranks
    ]
    marked = [False, *(rank.behind for rank in ranks)]
    lines = [(title, False), *zip(columns(rows, ">>><>>", row_width()), marked, strict=True)]
    if any(rank.behind for rank in ranks):
        lines.append((" > others wait for it", True))
    if not any(rank.state.joined for rank in ranks):
        lines.append(("no rank has joined: they are starting, or do not call rankwise.init", False))
    return lines


def _as_json(job: RunningJob) -> dict[str, Any]:
    return {
        "launcher": job.launcher,
        "command": job.command,
        "started": job.view.started / 1e9,
        "world_size": job.world_size,
        "ranks": [_rank_json(rank) for rank in job.ranks()],
    }


def _rank_json(rank: RankView) -> dict[str, Any]:
    state, operation = rank.state, rank.state.operation
    return {
        "rank": rank.rank,
        "pid": rank.pid or None,
        "cpus": rank.cpus or None,
        "state": rank.how,
        "alive": rank.how in ("alive", "stopped"),
        "restart": rank.restart,
        "exit_status": state.exit_status,
        "inside": state.inside,
        "operation": operation.name if operation else None,
        "group": operation.group if operation else None,
        "sequence": operation.sequence if operation else None,
        "peer": operation.peer if operation else None,
        "since": state.since / 1e9,
        "operations": state.operations,
        "bytes": state.bytes,
        "waited": state.waited / 1e9,
        "behind": rank.behind,
        "where": state.description,
    }
