"""A plot of a benchmark: time and bandwidth by size for each operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

COLOURS = {
    "rankwise": "#d62728",
    "registered": "#ff7f0e",
    "pointer": "#ff9896",
    "native": "#7f7f7f",
    "bound": "#000000",
    "openmpi": "#1f77b4",
    "mpich": "#2ca02c",
    "mpi": "#17becf",
    "gloo": "#9467bd",
}


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the results in a benchmark's JSON.

    Each row shows an operation on one number of ranks: time by size on the left, bus bandwidth by size
    on the right. A star marks an algorithm where rankwise chooses it. Barrier's row shows time by the number
    of ranks. All axes but bandwidth are logarithmic.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _rows(document["results"])
    figure, grid = pyplot.subplots(len(rows), 2, figsize=(12, 3.4 * len(rows)), squeeze=False, layout="constrained")
    for (title, sized, results), (left, right) in zip(rows, grid, strict=True):
        for axes, key, label in ((left, "median_us", "time, µs"), (right, "bus_gb_per_s", "bus bandwidth, GB/s")):
            if key not in results[0]:
                axes.set_axis_off()
                continue
            _lines(axes, results, "size" if sized else "ranks", key)
            axes.set_title(title)
            axes.set_ylabel(label)
            if axes is left:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.grid(True, which="major", alpha=0.3)
            axes.legend(fontsize="small")
            if sized:
                axes.set_xscale("log", base=2)
                axes.set_xlabel("size, bytes")
                axes.xaxis.set_major_formatter(lambda value, _: _bytes(value))
            else:
                axes.set_xlabel("ranks")
                axes.xaxis.get_major_locator().set_params(integer=True)
    machine = document["machine"]
    figure.suptitle(f"rankwise {document['rankwise']} on {machine['cpu']}, {machine['cores']} cores", fontsize="large")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _rows(results: list[dict[str, Any]]) -> list[tuple[str, bool, list[dict[str, Any]]]]:
    """(title, whether the x axis is the size, results) of each row."""
    rows: dict[str, tuple[str, bool, list[dict[str, Any]]]] = {}
    for result in results:
        sized = "bus_gb_per_s" in result
        ranks = result["ranks"]
        title = f"{result['operation']}, {ranks} ranks, {result['dtype']}" if sized else result["operation"]
        rows.setdefault(title, (title, sized, []))[2].append(result)
    return list(rows.values())


def _lines(axes: Any, results: list[dict[str, Any]], over: str, key: str) -> None:
    for name in dict.fromkeys(result["contender"] for result in results):
        own = [result for result in results if result["contender"] == name]
        x, y = [result[over] for result in own], [result[key] for result in own]
        width = 2.4 if name == "rankwise" else 1.4
        (line,) = axes.plot(x, y, marker="o", markersize=4, linewidth=width, color=COLOURS.get(name), label=name)
        chosen = [(result[over], result[key]) for result in own if result.get("chosen")]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), "*", markersize=11, color=line.get_color())


def _bytes(value: float) -> str:
    for unit, name in ((2**30, "G"), (2**20, "M"), (2**10, "K")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"
