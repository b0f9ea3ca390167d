"""Draws what each collective does on four ranks, as SVG: `python docs/pictures.py` writes the files."""

from __future__ import annotations

from collections.abc import Sequence

Cell = tuple[
    str, int
]  # its text, and whose data it is: 0 to 3; 4 for a result of all ranks; 5 for what is left unchanged
Ranks = Sequence[Sequence[Cell]]

# Light enough for black text, in light and dark mode.
FILLS = ("#8ecae6", "#ffd166", "#b5e48c", "#f4a6c0", "#d0bfff", "#e0e0e0")
CELL, GAP, LEFT, TOP, MIDDLE = (58, 26), 8, 10, 44, 120
NAMES = "ABCD"


def own() -> list[list[Cell]]:
    """One block on each rank."""
    return [[(NAMES[rank], rank)] for rank in range(4)]


def columns() -> list[list[Cell]]:
    """Four blocks on each rank."""
    return [[(f"{NAMES[rank]}{part}", rank) for part in range(4)] for rank in range(4)]


def only(rank: int, cells: Sequence[Cell]) -> list[list[Cell]]:
    """Blocks on one rank alone."""
    return [list(cells) if other == rank else [] for other in range(4)]


_ALL: list[Cell] = [(NAMES[rank], rank) for rank in range(4)]
_SUM: Cell = ("A+B+C+D", 4)
_SUMS: list[Cell] = [("A", 4), ("A+B", 4), ("A+B+C", 4), _SUM]

# The operation: (before, after).
PICTURES: dict[str, tuple[Ranks, Ranks]] = {
    "broadcast": (only(0, _ALL[:1]), [_ALL[:1]] * 4),
    "reduce": (own(), [[_SUM], *([(NAMES[rank], 5)] for rank in (1, 2, 3))]),
    "all_reduce": (own(), [[_SUM]] * 4),
    "gather": (own(), only(0, _ALL)),
    "all_gather": (own(), [_ALL] * 4),
    "scatter": (only(0, [(f"A{part}", part) for part in range(4)]), [[(f"A{part}", part)] for part in range(4)]),
    "reduce_scatter": (columns(), [[(f"A{part}+…+D{part}", 4)] for part in range(4)]),
    "all_to_all": (columns(), [[(f"{NAMES[rank]}{part}", rank) for rank in range(4)] for part in range(4)]),
    "scan": (own(), [[one] for one in _SUMS]),
    "exscan": (own(), [[("0", 5)], *([one] for one in _SUMS[:3])]),
    "sendrecv": (own(), [[(NAMES[(rank - 1) % 4], (rank - 1) % 4)] for rank in range(4)]),
}


def svg(operation: str) -> str:
    """The picture of one operation: each rank's memory before the call, and after it."""
    before, after = PICTURES[operation]
    rows = max(len(cells) for cells in (*before, *after))
    half = 4 * (CELL[0] + GAP) - GAP
    width, height = 2 * half + MIDDLE + 2 * LEFT, TOP + rows * (CELL[1] + 4) + 6
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{operation} on four ranks, before and after">',
        '<g font-family="system-ui, sans-serif" font-size="12" text-anchor="middle">',
        *_side("before", before, LEFT),
        *_side("after", after, LEFT + half + MIDDLE),
    ]
    x, y = LEFT + half + MIDDLE // 2, TOP + CELL[1] // 2
    parts += [
        f'<text x="{x}" y="{y - 8}" fill="#888">{operation}</text>',
        f'<path d="M{x - 24} {y} h44 m-7 -5 l7 5 l-7 5" fill="none" stroke="#888" stroke-width="2"/>',
        "</g></svg>",
    ]
    return "\n".join(parts) + "\n"


def _side(title: str, ranks: Ranks, left: int) -> list[str]:
    middle = left + 2 * (CELL[0] + GAP) - GAP // 2
    lines = [f'<text x="{middle}" y="14" fill="#888">{title}</text>']
    for rank, cells in enumerate(ranks):
        x = left + rank * (CELL[0] + GAP)
        lines.append(f'<text x="{x + CELL[0] // 2}" y="34" fill="#888" font-weight="600">rank {rank}</text>')
        if not cells:
            lines.append(
                f'<rect x="{x}" y="{TOP}" width="{CELL[0]}" height="{CELL[1]}" rx="4" fill="none" stroke="#999" '
                'stroke-dasharray="3 3"/>'
            )
        for row, (text, whose) in enumerate(cells):
            y = TOP + row * (CELL[1] + 4)
            lines.append(f'<rect x="{x}" y="{y}" width="{CELL[0]}" height="{CELL[1]}" rx="4" fill="{FILLS[whose]}"/>')
            small = ' font-size="10.5"' if len(text) > 6 else ""
            lines.append(f'<text x="{x + CELL[0] // 2}" y="{y + 17}" fill="#111"{small}>{text}</text>')
    return lines
