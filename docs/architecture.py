"""Draws the parts of the package and their imports, read from the code: `python docs/pictures.py` writes the file."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "rankwise"
NATIVE = "_native"
LEFT_OUT = {"testing"}  # it tests the others, and so imports most of them
TEXTS = {
    "frontends": "Tcl, torch.distributed",
    "tools": "the command rankwise",
    "elastic": "state that outlives a rank",
    "pool": "ranks that stay",
    "overlap": "gradients in buckets",
    "group": "operations on arrays",
    "launch": "starting ranks",
    "meeting": "how ranks find each other",
    "observe": "jobs seen from outside",
    "backends": "shm, gloo, mpi, nccl, …",
    "arrays": "any array as a buffer",
    "system": "variables, CPUs, files",
    "contract": "the interface between them",
    NATIVE: "the engine, in C++",
}
BOX, GAP = (172, 46), (26, 60)


def imports() -> dict[str, set[str]]:
    """{part: the parts that its modules import}; a part is a folder of the package, or the native engine."""
    parts = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()} - LEFT_OUT | {NATIVE}
    found: dict[str, set[str]] = {part: set() for part in parts}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0]
        if part not in parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                words = name.split(".")
                if words[0] == "rankwise" and len(words) > 1 and words[1] in parts - {part}:
                    found[part].add(words[1])
    return found


def reduced(arrows: dict[str, set[str]]) -> dict[str, set[str]]:
    """Without the arrows that follow from others."""

    def reachable(part: str) -> set[str]:
        return {far for near in arrows[part] for far in {near} | reachable(near)}

    return {
        part: {one for one in to if not any(one in reachable(other) for other in to)} for part, to in arrows.items()
    }


def rows(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The parts from those that nobody imports down to those that import nothing."""

    def depth(part: str) -> int:
        return 1 + max((depth(other) for other in arrows[part]), default=-1)

    by_depth: dict[int, list[str]] = {}
    for part in sorted(arrows):
        by_depth.setdefault(depth(part), []).append(part)
    return [by_depth[level] for level in sorted(by_depth, reverse=True)]


def svg() -> str:
    """The diagram: a box for each part, and an arrow to each part that it imports."""
    arrows = imports()
    grid = rows(arrows)
    columns = max(map(len, grid))
    width = columns * (BOX[0] + GAP[0]) + GAP[0]
    height = len(grid) * (BOX[1] + GAP[1])
    place = {}
    for y, row in enumerate(grid):
        left = (width - len(row) * (BOX[0] + GAP[0]) + GAP[0]) // 2
        for x, part in enumerate(row):
            place[part] = (left + x * (BOX[0] + GAP[0]), y * (BOX[1] + GAP[1]) + 10)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-label="The parts of rankwise and which of them import which">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#888"/></marker></defs>',
        '<g fill="none" stroke="#888" stroke-width="1.3" marker-end="url(#tip)">',
    ]
    for part, others in sorted(reduced(arrows).items()):
        x, y = place[part]
        for other in sorted(others):
            u, v = place[other]
            start, end = (x + BOX[0] // 2, y + BOX[1]), (u + BOX[0] // 2, v - 2)
            bend = (end[1] - start[1]) // 2
            lines.append(
                f'<path d="M{start[0]} {start[1]} C{start[0]} {start[1] + bend} '
                f'{end[0]} {end[1] - bend} {end[0]} {end[1]}"/>'
            )
    lines.append('</g><g font-family="system-ui, sans-serif" text-anchor="middle">')
    for part, (x, y) in sorted(place.items()):
        fill = "#ffd166" if part == NATIVE else "#d7eaf8"
        name = "native" if part == NATIVE else part
        lines += [
            f'<rect x="{x}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="6" fill="{fill}"/>',
            f'<text x="{x + BOX[0] // 2}" y="{y + 20}" font-size="14" font-weight="600" fill="#111">{name}</text>',
            f'<text x="{x + BOX[0] // 2}" y="{y + 37}" font-size="11.5" fill="#333">{TEXTS[part]}</text>',
        ]
    return "\n".join([*lines, "</g></svg>"]) + "\n"
