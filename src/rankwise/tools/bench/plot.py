"""A plot of a benchmark: small multiples, a panel for each case, with each library's time by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankwise.contract.ranks import count_of_ranks
from rankwise.system.texts import amount, duration
from rankwise.tools.bench.report import Row

# Okabe and Ito's colours, which people with any colour vision can tell apart; the same for a library in every plot.
COLOURS = {
    "rankwise": "#0072b2",
    "registered": "#56b4e9",
    "torch": "#009e73",
    "openmpi": "#d55e00",
    "mpich": "#e69f00",
    "mpi": "#d55e00",
    "gloo": "#cc79a7",
}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo", "mpi": "MPI"}
WIDTH = 10.0  # inches of the whole figure; 1,000 pixels as PNG
HEIGHT = 2.5  # of a panel


def draw(rows: Sequence[Row], path: Path, title: str) -> None:
    """Draw the rows; the path's suffix gives the format: .svg, .png or .pdf.

    The times are logarithmic. The horizontal axis is the size, or for a case without sizes what it was measured with.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels: dict[str, list[Row]] = {}
    for row in rows:
        panels.setdefault(f"{row.case}, {count_of_ranks(row.ranks)}", []).append(row)
    across = min(len(panels), 3)
    down = math.ceil(len(panels) / across)
    size = (WIDTH, HEIGHT * down + 0.5) if across > 1 else (0.7 * WIDTH, 1.6 * HEIGHT)
    settings: dict[Any, Any] = {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "rankwise",
    }
    with pyplot.rc_context(settings):
        figure, grid = pyplot.subplots(down, across, figsize=size, squeeze=False, layout="constrained")
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, own) in zip(grid.flat, panels.items(), strict=False):
            axes.set_title(name, loc="left", fontweight="bold")
            _panel(axes, own)
        lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
        figure.legend(lines.values(), lines.keys(), loc="outside upper right", ncols=len(lines), frameon=False)
        figure.suptitle(title, x=0.01, ha="left")
        figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: duration(value * 1e-6))
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    sized = all(row.size for row in rows)
    if sized:
        axes.set_xscale("log", base=2)
        axes.xaxis.get_major_locator().set_params(base=16.0)
        axes.xaxis.set_major_formatter(lambda value, _: amount(value))
    for library in dict.fromkeys(row.library for row in rows):
        own = [row for row in rows if row.library == library]
        axes.plot(
            [row.size if sized else row.at for row in own],
            [row.median_us for row in own],
            "o-",
            markersize=2.5,
            linewidth=2.2 if library == "rankwise" else 1.2,
            color=COLOURS.get(library),
            label=NAMES.get(library, library),
        )
