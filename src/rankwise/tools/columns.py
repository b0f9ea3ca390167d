"""A table in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], layout: str) -> list[str]:
    """A line for each row, the first being the heads. layout: a < or > for each column but the last, which flows."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(layout))]
    lines = []
    for row in rows:
        cells = [f"{text:{side}{width}}" for text, side, width in zip(row, layout, widths, strict=False)]
        lines.append("  ".join([*cells, *row[len(layout) :]]).rstrip())
    return lines
