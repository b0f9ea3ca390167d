"""Draws who sends to whom in each step of an algorithm, as SVG: `python docs/pictures.py` writes the files."""

from __future__ import annotations

from collections.abc import Sequence

Step = tuple[str, Sequence[tuple[int, int]]]  # what each message carries, and (source, destination) of each message

ACROSS, DOWN, LEFT, TOP = 58, 62, 150, 40


def _pairs(distance: int) -> list[tuple[int, int]]:
    return [(rank, rank ^ distance) for rank in range(8)]


# Each algorithm on eight ranks, step by step.
PICTURES: dict[str, list[Step]] = {
    "recursive_doubling": [("the whole array", _pairs(distance)) for distance in (1, 2, 4)],
    "pairwise": [("1 block each", [(a, b) for a in range(8) for b in range(8) if a != b])],
    "ring": [(f"step {step + 1} of 7", [(rank, (rank + 1) % 8) for rank in range(8)]) for step in range(2)],
}


def svg(algorithm: str) -> str:
    """The picture of one algorithm: the ranks in columns, the steps from top to bottom, an arrow for each message."""
    steps = PICTURES[algorithm]
    width, height = LEFT + 8 * ACROSS, TOP + len(steps) * DOWN + 20
    tip = f"tip-{algorithm}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="Who sends to whom in {algorithm} on eight ranks">',
        f'<defs><marker id="{tip}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#0072b2"/></marker></defs>',
        '<g font-family="system-ui, sans-serif" font-size="12" fill="#888">',
    ]
    for rank in range(8):
        lines.append(f'<text x="{_x(rank)}" y="18" text-anchor="middle" font-weight="600">rank {rank}</text>')
    for row, (what, _) in enumerate(steps):
        lines.append(f'<text x="4" y="{TOP + row * DOWN + DOWN // 2 + 4}">{what}</text>')
    lines.append(f'</g><g stroke="#0072b2" stroke-width="1.6" marker-end="url(#{tip})">')
    for row, (_, messages) in enumerate(steps):
        lines += [_arrow(source, destination, TOP + row * DOWN) for source, destination in messages]
    lines.append('</g><g fill="#888">')
    for row in range(len(steps) + 1):
        lines += [f'<circle cx="{_x(rank)}" cy="{TOP + row * DOWN}" r="5"/>' for rank in range(8)]
    return "\n".join([*lines, "</g></svg>"]) + "\n"


def _x(rank: int) -> int:
    return LEFT + rank * ACROSS + ACROSS // 2 - 10


def _arrow(source: int, destination: int, top: int) -> str:
    """A line that ends at the edge of the destination's circle."""
    x, y, u, v = _x(source), top, _x(destination), top + DOWN
    length = ((u - x) ** 2 + (v - y) ** 2) ** 0.5
    u, v = round(u - (u - x) * 7 / length), round(v - (v - y) * 7 / length)
    return f'<line x1="{x}" y1="{y}" x2="{u}" y2="{v}"/>'
