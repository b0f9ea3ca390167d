"""Draws the ways of data from one rank to another on a host, as SVG: `python docs/pictures.py` writes the file."""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = ("rank 0's memory", "shared segment", "rank 1's memory")
LEFT, TOP, COLUMN, BETWEEN, ROW, BOX = 112, 40, 150, 46, 66, 26
DATA, HEADER = "#8ecae6", "#ffd166"  # light enough for black text, in light and dark mode

Box = tuple[int, float, float, str, str]  # column, its left and right edge as shares of the column, text, fill
Arrow = tuple[int, int]  # the boxes between which data is copied
Row = tuple[str, str, Sequence[Box], Sequence[Arrow]]

WHOLE = (0.0, 1.0)
ROWS: Sequence[Row] = (
    (
        "inline",
        "in the header",
        [(0, 0.35, 0.65, "x", DATA), (1, 0.1, 0.9, "header | x", HEADER), (2, 0.35, 0.65, "x", DATA)],
        [(0, 1), (1, 2)],
    ),
    (
        "flat",
        "through one slot",
        [(0, *WHOLE, "x", DATA), (1, *WHOLE, "slot: x", DATA), (2, *WHOLE, "x", DATA)],
        [(0, 1), (1, 2)],
    ),
    (
        "staged",
        "in pieces",
        [
            *((0, part / 4, (part + 1) / 4 - 0.03, str(part + 1), DATA) for part in range(4)),
            (1, 0.0, 0.48, "slot: 2", DATA),
            (1, 0.52, 1.0, "slot: 3", DATA),
            *((2, part / 4, (part + 1) / 4 - 0.03, str(part + 1), DATA if part < 2 else "none") for part in range(4)),
        ],
        [(3, 4), (5, 6)],
    ),
    (
        "single_copy",
        "one system call",
        [(0, *WHOLE, "x", DATA), (1, 0.15, 0.85, "header", HEADER), (2, *WHOLE, "x", DATA)],
        [(0, 2)],
    ),
    (
        "registered",
        "read in place",
        [(1, *WHOLE, "x, from group.empty", DATA), (2, *WHOLE, "rank 1 reads x", "none")],
        [(0, 1)],
    ),
)


def svg() -> str:
    """A row for each way: the boxes are memory, the arrows are copies, or reads by the reduction."""
    width, height = LEFT + 3 * COLUMN + 2 * BETWEEN + 8, TOP + len(ROWS) * ROW - 24
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="Five ways of data from the memory of one rank to that of another">',
        '<defs><marker id="tip-paths" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#0072b2"/></marker></defs>',
        '<g font-family="system-ui, sans-serif" font-size="12" text-anchor="middle">',
        f'<rect x="{_left(1) - 12}" y="22" width="{COLUMN + 24}" height="{height - 26}" rx="8" fill="#888" '
        'fill-opacity="0.12"/>',
    ]
    for column, title in enumerate(COLUMNS):
        lines.append(f'<text x="{_left(column) + COLUMN // 2}" y="14" fill="#888" font-weight="600">{title}</text>')
    for row, (name, what, boxes, arrows) in enumerate(ROWS):
        y = TOP + row * ROW
        lines.append(f'<text x="4" y="{y + 12}" fill="#888" font-weight="600" text-anchor="start">{name}</text>')
        lines.append(f'<text x="4" y="{y + 28}" fill="#888" font-size="11" text-anchor="start">{what}</text>')
        for column, left, right, text, fill in boxes:
            x, wide = _left(column) + left * COLUMN, (right - left) * COLUMN
            dashes = ' stroke="#999" stroke-dasharray="3 3"' if fill == "none" else ""
            colour = "#888" if fill == "none" else "#111"
            lines.append(f'<rect x="{x:g}" y="{y}" width="{wide:g}" height="{BOX}" rx="4" fill="{fill}"{dashes}/>')
            lines.append(f'<text x="{x + wide / 2:g}" y="{y + 17}" fill="{colour}">{text}</text>')
        lines += [_arrow(boxes[source], boxes[destination], y) for source, destination in arrows]
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def _left(column: int) -> int:
    return LEFT + column * (COLUMN + BETWEEN)


def _arrow(source: Box, destination: Box, y: int) -> str:
    """From box to box; an arrow over several columns passes below what stands between."""
    start = _left(source[0]) + source[2] * COLUMN + 2
    end = _left(destination[0]) + destination[1] * COLUMN - 3
    line = 'fill="none" stroke="#0072b2" stroke-width="1.8" marker-end="url(#tip-paths)"'
    if destination[0] - source[0] == 1:
        return f'<path d="M{start:g} {y + BOX // 2} L{end:g} {y + BOX // 2}" {line}/>'
    start, end, low = start - COLUMN / 4, end + COLUMN / 4, y + BOX + 16
    return f'<path d="M{start:g} {y + BOX + 2} C{start:g} {low + 8} {end:g} {low + 8} {end:g} {y + BOX + 4}" {line}/>'
