"""The tables of a trace, as rows of text; the first row of each is its header."""

from __future__ import annotations

from rankwise.observe.trace_file import Trace
from rankwise.tools.layout import one_line
from rankwise.tools.stragglers import GroupOperation, stragglers, summaries
from rankwise.tools.units import amount, duration

Rows = list[tuple[str, ...]]


def heading(trace: Trace, width: int) -> str:
    """How many ranks ran what for how long, in at most `width` characters."""
    head = f"{len(trace.ranks)} ranks for {duration((trace.written - trace.started) / 1e9)}: "
    return head + one_line(" ".join(trace.command), width - len(head))


def last_to_begin(trace: Trace, found: list[GroupOperation]) -> Rows:
    """How often each rank was the last to begin an operation, and how long the others waited for it."""
    rows: Rows = [("rank", "came last", "", "others waited", "longest")]
    for one in stragglers(found, [rank.rank for rank in trace.ranks]):
        worst = f"{duration(one.worst.waited / 1e9)} in {one.worst.name}" if one.worst and one.worst.waited else ""
        share = f"{100 * one.times / len(found):.0f} %"
        rows.append((str(one.rank), str(one.times), share, duration(one.waited / 1e9), worst))
    return rows


def operations(trace: Trace, found: list[GroupOperation]) -> Rows:
    """The operations by name and size; those with the longest waits come first."""
    rows: Rows = [("operation", "size", "calls", "mean", "waiting", "mostly last")]
    for kind in summaries(trace, found):
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
    return rows
