"""`rankwise trace`: what a job did, which rank waited for which, and its timeline."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rankwise.observe.trace_file import Trace
from rankwise.tools.cli import Parser
from rankwise.tools.columns import columns
from rankwise.tools.stragglers import group_operations, stragglers, summaries
from rankwise.tools.timeline import timeline
from rankwise.tools.units import amount, duration

MOST_KINDS = 20

DESCRIPTION = """\
Show what a job did, from the trace that rankwise run wrote: where each rank was at the end, which
ranks were the last to begin operations and how long the others waited for them, and the operations
by name and size. Also write a timeline for ui.perfetto.dev or chrome://tracing: a process for each
rank, with waiting and moving in different colours, and the spans that the program added with
rankwise.trace.
"""

EPILOG = """\
A trace holds about the last thousand operations of each rank. "others waited" is the sum over all
other ranks. For operations below 4 KiB that did not wait, only the end is recorded, not the duration.
On backends other than shared memory, all the time in an operation counts as waiting.

examples:
  rankwise run -n 4 --trace t.json train.py; rankwise trace t.json
  rankwise trace t.json -o timeline.json
"""


def main(argv: Sequence[str]) -> int:
    """Run `rankwise trace` with these arguments; returns the exit code."""
    parser = Parser(
        prog="rankwise trace",
        usage="rankwise trace [options] FILE",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="written by rankwise run --trace, or after a failure")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="where the timeline goes (default: FILE.perfetto.json)"
    )
    options = parser.parse_args(argv)
    file: Path = options.file
    output: Path = options.output or file.with_name(f"{file.stem}.perfetto.json")
    try:
        trace = Trace.read(file)
        output.write_text(json.dumps(timeline(trace)), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"rankwise trace: error: {error}", file=sys.stderr)
        return 1
    print("\n".join(summary(trace)))
    print(f"\ntimeline: {output} (open it in https://ui.perfetto.dev or chrome://tracing)")
    return 0


def summary(trace: Trace) -> list[str]:
    """The report as lines of text."""
    command = " ".join(" ".join(trace.command).split())
    lines = [f"{len(trace.ranks)} ranks for {duration((trace.written - trace.started) / 1e9)}: {command}"]
    if trace.failure is not None:
        lines += [f"failed: {trace.failure}", ""]
        lines += columns(
            [("rank", "ended", "at last"), *((str(rank.rank), rank.ended or "", rank.where) for rank in trace.ranks)],
            "><",
        )
    found = group_operations(trace)
    if not found:
        return [*lines, "", "the trace holds no operation that all ranks began"]
    last = [("rank", "came last", "", "others waited", "longest")]
    for one in stragglers(found, len(trace.ranks)):
        worst = f"{duration(one.worst.waited / 1e9)} in {one.worst.name}" if one.worst and one.worst.waited else ""
        share = f"{100 * one.times / len(found):.0f} %"
        last.append((str(one.rank), str(one.times), share, duration(one.waited / 1e9), worst))
    lines += ["", f"who came last to the {len(found)} operations that all ranks began", *columns(last, ">>>>")]
    rows = [("operation", "size", "calls", "mean", "waiting", "mostly last")]
    all_kinds = summaries(trace, found)
    for kind in all_kinds[:MOST_KINDS]:
        rows.append(
            (
                kind.name,
                amount(kind.bytes) if kind.bytes else "",
                str(kind.calls),
                duration(kind.spent / kind.calls / 1e9),
                f"{100 * min(1.0, kind.waited / kind.spent):.0f} %" if kind.spent else "",
                f"rank {kind.last.most_common(1)[0][0]}" if kind.last else "",
            )
        )
    lines += ["", "operations, the longest waits first", *columns(rows, "<>>>>")]
    if len(all_kinds) > MOST_KINDS:
        lines.append(f"and {len(all_kinds) - MOST_KINDS} more")
    return lines
