"""`rankwise trace`: what a job did, which rank waited for which, and its timeline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rankwise.observe.trace_file import Trace
from rankwise.system.texts import duration
from rankwise.tools.cli import Parser, option, refuse
from rankwise.tools.layout import columns, row_width, width
from rankwise.tools.stragglers import group_operations
from rankwise.tools.timeline import timeline
from rankwise.tools.trace_page.page import page
from rankwise.tools.trace_tables import Rows, heading, headline, last_to_begin, operations, ranks, spans

MOST_KINDS = 20

DESCRIPTION = """\
Show what a job did, from the trace that rankwise run wrote. The first line says what went wrong and
who was waited for, or that nothing failed. The others say where each rank was at the end, how each rank
spent its time, how long the program's spans took, which ranks were the last to begin operations and
how long the others waited for them, and list the operations by name and size. Also write a timeline for
ui.perfetto.dev or chrome://tracing: a process for each rank, with waiting and moving in different
colours, and the spans that the program added with rankwise.trace. With --html, write one page with all
of this, which any browser opens offline.
"""

EPILOG = """\
A trace holds about the last thousand operations of each rank. "in background" is the time in which
operations were in progress but the program waited for none of them: asynchronous operations, and messages
that were complete before their call began to wait. "others waited" is the sum over all other ranks. For
operations below 4 KiB that did not wait, only the end is recorded, not the duration. On backends other
than shm and threads, all the time in an operation counts as waiting; hierarchical also records the parts
of an operation within a host, and how long each of them waited.

Under rankwise run --nnodes, node 0 writes one trace of the ranks of all hosts, with all times on node 0's
clock. The report shows what was added to the times of each other node, and how far this may be off.

examples:
  rankwise run -n 4 --trace t.json train.py; rankwise trace t.json
  rankwise trace t.json --html t.html
  rankwise trace t.json -o timeline.json
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise trace` with these arguments; returns the exit code."""
    parser = Parser(
        prog="rankwise trace",
        usage="rankwise trace [options] FILE",
        description=DESCRIPTION,
        epilog=EPILOG,
        options=(
            option("file", type=Path, metavar="FILE", help="written by rankwise run --trace, or after a failure"),
            option(
                "-o", "--output", type=Path, metavar="OUT", help="where the timeline goes (default: FILE.perfetto.json)"
            ),
            option("--html", type=Path, metavar="PAGE", help="write a page with the timeline and all tables"),
        ),
    )
    options = parser.parse_args(argv)
    file: Path = options.file
    output: Path = options.output or file.with_name(f"{file.stem}.perfetto.json")
    places = [path.resolve() for path in (file, output, options.html) if path is not None]
    if len(set(places)) < len(places):
        parser.error("expected FILE, -o and --html to be different files")
    try:
        trace = Trace.read(file)
    except (OSError, ValueError) as error:
        return refuse("trace", str(error))
    print("\n".join(summary(trace)), end="\n\n")
    try:
        if options.html is not None:
            options.html.write_text(page(trace), encoding="utf-8")
            print(f"page: {options.html} (open it in a browser)")
        output.write_text(json.dumps(timeline(trace)), encoding="utf-8")
    except OSError as error:
        return refuse("trace", f"{error.filename} cannot be written: {error.strerror}; name a place with -o or --html")
    print(f"timeline: {output} (open it in https://ui.perfetto.dev or chrome://tracing)")
    return 0


def summary(trace: Trace) -> list[str]:
    """The report as lines of text."""
    group_ops = group_operations(trace)
    lines = [headline(trace, group_ops), heading(trace, width())]
    for clock in trace.clocks:
        off = f"{clock.offset / 1e6:+.3f} ms, give or take {clock.within / 1e6:.3f} ms"
        lines.append(f"node {clock.node} ({clock.host}): {off} were added to its times")
    if trace.failure is not None:
        lines += [*trace.failure.splitlines()[1:], ""]
        lines += columns(
            [
                ("rank", "ended", "at last"),
                *((f"{rank.rank} {rank.host}".rstrip(), rank.ended or "", rank.where) for rank in trace.ranks),
            ],
            "><",
            row_width(),
        )
    if trace.losses:
        lost = [("lost", "after", "how", "")]
        for loss in trace.losses:
            after = duration((loss.at - trace.started) / 1e9)
            lost.append((f"rank {loss.rank}", after, loss.how, "started again" if loss.replaced else ""))
        lines += ["", *columns(lost, "<><<", row_width())]
    lines += _longest("the time of each rank", ranks(trace), ">>>>>>>")
    lines += _longest("spans of the program, the longest first", spans(trace), "<<>>>")
    missed = sum(not set(each.late) <= set(each.begun) for each in group_ops)
    if group_ops:
        never = f"; some ranks never began {missed} more" * bool(missed)
        counted = "1 operation" if len(group_ops) - missed == 1 else f"{len(group_ops) - missed} operations"
        lines += ["", f"who came last to the {counted} that all ranks began{never}"]
        lines += columns(last_to_begin(trace, group_ops), ">>>>", row_width())
    else:
        lines += ["", "the trace holds no operation that all ranks began"]
    return lines + _longest("operations, the longest waits first", operations(trace, group_ops), "<>>>>")


def _longest(title: str, rows: Rows, layout: str) -> list[str]:
    """A table of at most MOST_KINDS rows below its header; nothing if it has none."""
    if len(rows) == 1:
        return []
    more = [f"and {len(rows) - MOST_KINDS - 1} more"] * (len(rows) > MOST_KINDS + 1)
    return ["", title, *columns(rows[: MOST_KINDS + 1], layout, row_width()), *more]
