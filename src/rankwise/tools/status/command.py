"""The command line of `rankwise status`, and what it shows in a terminal."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Sequence

from rankwise.contract.stacks import in_words
from rankwise.observe.jobs import RunningJob, jobs_of, running_jobs
from rankwise.tools.cli import Parser, refuse, whole
from rankwise.tools.layout import columns, one_line, row_width, width
from rankwise.tools.status.table import AWAITED, HEAD, LAYOUT, MISSING, NONE_JOINED, as_json, as_prometheus, table

REFRESH = 0.25  # seconds between two updates of --watch

DESCRIPTION = """\
Show the state of every rank of a running job: whether it is alive or how it ended, which operation it
is in and since when, the bytes that its operations have moved, and how long it has waited for other
ranks; "restart 2" is the second replacement of a lost rank. A > marks the ranks that the others wait
for. The job is not disturbed: its memory is mapped read-only. Only --stacks has a thread of each rank
write its stack there.
"""

EPILOG = """\
PID is the process id of the launcher or of any rank; without it all jobs of this user on this host
are shown. The column CPUs lists the CPUs that each rank may use (rankwise run --bind); the column moved
counts the bytes of each rank's own arrays; "of group 'world.tp'" shows the name that a group got when it
was made, or its number. Of a job on several nodes (rankwise run --nnodes), the nodes of this host are shown.

--serve listens on the loopback interface only, and answers only those who know its token, which is part
of the address that it prints. It can show jobs, and change nothing. Prometheus gets the numbers from
/metrics with `authorization: {credentials_file: status.token}` in its scrape configuration.

examples:
  rankwise status                  all jobs
  rankwise status --stacks 4711    one job, with the Python stacks of its ranks
  rankwise status --watch 4711     update until the job ends or Ctrl-C
  rankwise status --json | jq '.[].ranks[] | select(.behind)'
  rankwise status --serve          a web page of all jobs; prints its address
  rankwise status --serve 9100 --token-file status.token
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
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--stacks", action="store_true", help="also print where in its program each rank of shm is")
    how.add_argument("--watch", action="store_true", help="update it continuously in the terminal")
    how.add_argument(
        "--serve",
        nargs="?",
        type=whole("a port from 0 to 65535", 0, 65535),
        const=0,
        metavar="PORT",
        help="show it as a web page, at any free port or at PORT",
    )
    how.add_argument("--json", action="store_true", help="print it as JSON, times in seconds")
    how.add_argument("--prometheus", action="store_true", help="print it in Prometheus's text format")
    parser.add_argument(
        "--token-file", metavar="FILE", help="for --serve: the file with the token; made if there is none"
    )
    options = parser.parse_args(argv)
    if options.token_file is not None and options.serve is None:
        parser.error("--token-file is for --serve")

    def find() -> list[RunningJob]:
        return running_jobs() if options.pid is None else jobs_of(options.pid)

    try:
        jobs = find()
    except (ProcessLookupError, PermissionError) as error:
        return refuse("status", str(error))
    if options.serve is not None:
        return _serve(options.serve, options.token_file, find)
    if options.json:
        print(json.dumps([as_json(job) for job in jobs], indent=1))
        return 0
    if options.prometheus:
        try:
            print(as_prometheus(jobs), end="")
        except ImportError:
            return refuse("status", f"--prometheus {MISSING}")
        return 0
    if options.watch:
        return _watch(find, jobs)
    if not jobs:
        return refuse(
            "status",
            "no job of this user runs on this host by rankwise run or over shm (only root sees the jobs of others)",
        )
    for place, job in enumerate(jobs):
        print("\n" * (place > 0) + "\n".join(text for text, _ in _lines(job)))
        if options.stacks:
            print(in_words(job.stacks()).removeprefix("\n"))
    return 0


def _serve(port: int, token_file: str | None, find: Callable[[], list[RunningJob]]) -> int:
    from rankwise.tools.status.serve import HOST, Server, token_of  # http.server takes time to import

    try:
        token = token_of(token_file)
    except (OSError, ValueError) as error:
        return refuse("status", f"--token-file: {error}")
    try:
        server = Server(port, token, find)
    except OSError as error:
        return refuse("status", f"port {port} of {HOST} cannot be used: {error.strerror}; name another: --serve PORT")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        print(f"{server.address}\nCtrl-C ends", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


def _watch(find: Callable[[], list[RunningJob]], jobs: list[RunningJob]) -> int:
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError:
        return refuse("status", "--watch needs rich: pip install 'rankwise[status]'")
    if not sys.stdout.isatty():
        return refuse("status", "--watch needs a terminal; without it the state is printed once")

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
                jobs = find()
                live.update(picture(), refresh=True)
    except ProcessLookupError:
        print("the job has ended")
    except KeyboardInterrupt:
        print()
    return 0


def _lines(job: RunningJob) -> list[Line]:
    """A title and a table; each line comes with whether the others wait for its rank."""
    now = table(job)
    (title,) = columns([[now.title + one_line(now.command, 3 * width() - len(now.title))]], "", row_width())
    rows = columns([HEAD, *now.rows], LAYOUT, row_width())
    lines = [(title, False), *zip(rows, [False, *now.awaited], strict=True)]
    if any(now.awaited):
        lines.append((f" {AWAITED}", True))
    if not now.joined:
        lines.append((NONE_JOINED, False))
    return lines
