"""A plot of a benchmark: small multiples, a panel for each operation, with each library's time by size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankwise.system.words import amount, duration

# Okabe and Ito's colours, which people with any colour vision can tell apart; the same for a library in every plot.
COLOURS = {
    "rankwise": "#0072b2",
    "registered": "#56b4e9",
    "pointer": "#009e73",
    "native": "#888888",
    "bound": "#000000",
    "openmpi": "#d55e00",
    "mpich": "#e69f00",
    "mpi": "#d55e00",
    "gloo": "#cc79a7",
}
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo", "mpi": "MPI"}

WIDTH = 10.0  # inches of the whole figure; 1,000 pixels as PNG
HEIGHT = 2.5  # of a panel
FONT = 8.0  # points


@dataclass(frozen=True)
class Panel:
    """over: "size" or "ranks", what the horizontal axis shows; None for dots, where there is only one value of it."""

    title: str
    over: str | None
    results: list[dict[str, Any]]


def draw(document: dict[str, Any], path: Path, title: str | None = None) -> None:
    """Draw the results in a benchmark's JSON; the path's suffix gives the format: .svg, .png or .pdf.

    All axes are logarithmic; panels over the size share theirs. An operation that was measured at a single point has
    dots. A star marks an algorithm where rankwise chooses it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = _panels(document["results"])
    columns = 1 if len(panels) == 1 else 2 if len(panels) in (2, 4) else 3
    rows = math.ceil(len(panels) / columns)
    size = (WIDTH, HEIGHT * rows + 0.5) if columns > 1 else (0.7 * WIDTH, 1.6 * HEIGHT)
    settings: dict[Any, Any] = {
        "font.size": FONT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "rankwise",
    }
    with pyplot.rc_context(settings):
        figure, grid = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        limits = _limits([result["median_us"] for panel in panels if panel.over == "size" for result in panel.results])
        for axes, panel in zip(grid.flat, panels, strict=False):
            axes.set_title(panel.title, loc="left", fontsize=FONT + 1, fontweight="bold")
            if panel.over is None:
                _dots(axes, panel.results)
                continue
            own = limits if panel.over == "size" else _limits([result["median_us"] for result in panel.results])
            _lines(axes, panel.results, panel.over, own, size[1] / rows)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        machine = document["machine"]
        usual = f"Median time. rankwise {document['rankwise']} on {machine['cpu']}, {machine['cores']} cores"
        figure.suptitle(title or usual, x=0.01, ha="left", fontsize=FONT + 2)
        figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)
        pyplot.close(figure)


def _panels(results: list[dict[str, Any]]) -> list[Panel]:
    found: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for result in results:
        sized = "bus_gb_per_s" in result
        found.setdefault((result["operation"], result["ranks"] if sized else None), []).append(result)
    panels = []
    for (operation, ranks), own in found.items():
        over = "size" if ranks is not None else "ranks"
        several = len({result[over] for result in own}) > 1
        what = f"{operation}, {ranks or own[0]['ranks']} ranks" if ranks or not several else operation
        if not several and over == "size":
            what += f", {amount(own[0]['size'])}"
        panels.append(Panel(what, over if several else None, own))
    return panels


def _limits(times: Sequence[float]) -> tuple[float, float]:
    return (min(times) / 1.5, max(times) * 1.5) if times else (1.0, 10.0)


def _lines(axes: Any, results: list[dict[str, Any]], over: str, limits: tuple[float, float], height: float) -> None:
    axes.set_yscale("log")
    axes.set_ylim(*limits)
    axes.yaxis.set_major_formatter(lambda value, _: duration(value * 1e-6))
    axes.grid(True, which="major", alpha=0.25, linewidth=0.6)
    if over == "size":
        axes.set_xscale("log", base=2)
        axes.xaxis.get_major_locator().set_params(base=16.0)
        axes.xaxis.set_major_formatter(lambda value, _: amount(value))
        axes.set_xlabel("size")
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("ranks")
    ends = {}
    for name in dict.fromkeys(result["contender"] for result in results):
        own = [result for result in results if result["contender"] == name]
        x, y = [result[over] for result in own], [result["median_us"] for result in own]
        width = 2.2 if name == "rankwise" else 1.2
        (line,) = axes.plot(x, y, marker="o", markersize=2.5, linewidth=width, color=COLOURS.get(name))
        chosen = [(result[over], result["median_us"]) for result in own if result.get("chosen")]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "*", markersize=9, color=line.get_color())
        ends[name] = (y[-1], line.get_color())
    _label(axes, ends, limits, height)


def _label(axes: Any, ends: dict[str, tuple[float, str]], limits: tuple[float, float], height: float) -> None:
    """Write each line's name to the right of its end, at least a line of text apart."""
    low, high = map(math.log, limits)
    apart = 1.25 * FONT / 72 / (0.72 * height)  # of the axes' height
    places = sorted(((math.log(y) - low) / (high - low), name) for name, (y, _) in ends.items())
    at, heights = -math.inf, []
    for place, _ in places:
        at = max(place, at + apart)
        heights.append(at)
    excess = max(0.0, heights[-1] - 1.0) if heights else 0.0
    for (_, name), place in zip(places, heights, strict=True):
        axes.annotate(
            NAMES.get(name, name),
            (1.02, place - excess),
            xycoords="axes fraction",
            va="center",
            color=ends[name][1],
            fontweight="bold" if name == "rankwise" else "normal",
            annotation_clip=False,
        )


def _dots(axes: Any, results: list[dict[str, Any]]) -> None:
    names = [result["contender"] for result in results]
    times = [result["median_us"] for result in results]
    for place, (name, time) in enumerate(zip(names, times, strict=True)):
        colour = COLOURS.get(name, "#888888")
        axes.plot(time, place, "o", markersize=7, color=colour)
        axes.annotate(
            f"{NAMES.get(name, name)}, {duration(time * 1e-6)}",
            (time, place),
            (7, 0),
            textcoords="offset points",
            va="center",
            color=colour,
        )
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(min(times) / 1.5, max(times) * 20)
    axes.xaxis.set_major_formatter(lambda value, _: duration(value * 1e-6))
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.grid(True, axis="x", which="major", alpha=0.25, linewidth=0.6)
    axes.yaxis.set_visible(False)
    axes.spines["left"].set_visible(False)
