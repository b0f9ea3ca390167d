"""Fills the page: the events of the timeline as JSON, and the tables as HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files

from rankwise.observe.trace_file import Trace
from rankwise.system.texts import duration
from rankwise.tools.stragglers import group_operations, waits
from rankwise.tools.timeline import timeline
from rankwise.tools.trace_tables import heading, headline, last_to_begin, operations, ranks, spans

WIDTH = 200  # characters of the title
NO_SPANS = "<p>The trace holds no span; the program adds them with rankwise.trace.span.</p>"
EMPTY = "<p>The trace holds no operation that all ranks began.</p>"


def page(trace: Trace) -> str:
    """The whole document. It loads nothing, and runs no script but its own."""
    group_ops = group_operations(trace)
    template = files(__package__).joinpath("template.html").read_text(encoding="utf-8")
    parts = {
        "heading": escape(heading(trace, WIDTH)),
        "headline": f"<p{' class=failure' * bool(trace.failure)}>{escape(headline(trace, group_ops))}</p>",
        "ranks": _table(ranks(trace)),
        "spans": _table(spans(trace)) if any(rank.spans for rank in trace.ranks) else NO_SPANS,
        "waits": _matrix(trace, waits(trace, group_ops)),
        "last": _table(last_to_begin(trace, group_ops)) if group_ops else EMPTY,
        "operations": _table(operations(trace, group_ops)),
        # "<" could end the script element
        "events": json.dumps(timeline(trace)["traceEvents"], separators=(",", ":")).replace("<", "\\u003c"),
    }
    for name, text in parts.items():
        template = template.replace(f"<!-- {name} -->", text)
    return template


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header; cells that begin with a digit are numbers."""
    head, *body = rows
    lines = ["<table><thead><tr>", *(f"<th>{escape(cell)}</th>" for cell in head), "</tr></thead><tbody>"]
    for row in body:
        cells = (f"<td{' class=number' * cell[:1].isdigit()}>{escape(cell)}</td>" for cell in row)
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])


def _matrix(trace: Trace, waited: dict[tuple[int, int], int]) -> str:
    """A row for each rank that waited, a column for each rank for which it waited; the longest wait is the darkest."""
    ranks = [rank.rank for rank in trace.ranks]
    most = max(waited.values(), default=0) or 1
    lines = ['<table class="matrix"><thead><tr><th>waited</th>']
    lines += [f"<th>for rank {rank}</th>" for rank in ranks]
    lines.append("</tr></thead><tbody>")
    for rank in ranks:
        cells = []
        for other in ranks:
            time = waited.get((rank, other), 0)
            text = duration(time / 1e9) if time else ""
            cells.append(f'<td class="number" style="--share:{time / most:.3f}">{text}</td>')
        lines.append(f"<tr><th>rank {rank}</th>{''.join(cells)}</tr>")
    return "".join([*lines, "</tbody></table>"])
