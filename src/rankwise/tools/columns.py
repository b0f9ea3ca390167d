"""A table in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], layout: str) -> list[str]:
    """A line of text for each row; the first row is the heading.

    layout: < or > aligns each column to the left or right; the last column has none and is not padded.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(layout))]
    lines = []
    for row in rows:
        cells = [f"{text:{side}{width}}" for text, side, width in zip(row, layout, widths, strict=False)]
        lines.append("  ".join([*cells, *row[len(layout) :]]).rstrip())
    return lines
