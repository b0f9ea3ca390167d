"""Draws the pictures of the site that are kept in the repository: `python docs/pictures.py` writes them anew.

The plots show the tables in benchmarks/results/collectives.md, which come from `rankwise bench`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import algorithms
import architecture
import collectives
import paths

from rankwise.tools.bench.plot import draw

DOCS = Path(__file__).parent
PAGE = DOCS.parent / "benchmarks" / "results" / "collectives.md"
UNITS = {"K": 1 << 10, "M": 1 << 20}
SPEED = ("rankwise", "openmpi", "mpich", "gloo")


def tables(heading: str) -> dict[str, Any]:
    """The first block of tables below this heading, as `rankwise bench --json` would write it."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1]
    block = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert block is not None
    head, *parts = block[1].split("\n\n")
    cpu, cores = re.findall(r"machine: (.*?), (\d+) of", head)[0]
    results = [result for part in parts if re.match(r"\w+, \d+ ranks", part) for result in table(part.splitlines())]
    version = re.findall(r"rankwise: rankwise (\S+),", head)[0]
    return {"machine": {"cpu": cpu, "cores": cores}, "rankwise": version, "results": results}


def table(lines: list[str]) -> list[dict[str, Any]]:
    """The rows of one operation. Columns stand between bars; the first number of each is the median in us."""
    operation, ranks = re.findall(r"(\w+), (\d+) ranks", lines[0])[0]
    contenders = [cell.split(",")[0].strip() for cell in lines[1].split("|")][:-1]
    results = []
    for line in lines[3:]:
        if not re.match(r" *(-|\d+[KM]?) ", line):
            break
        size, first = line.split("|")[0].split()[:2]
        times = [first, *(cell.split()[0] for cell in line.split("|")[1:-1])]
        for contender, time in zip(contenders, times, strict=True):
            result = {"operation": operation, "ranks": int(ranks), "contender": contender}
            result["median_us"] = float(time.replace(",", ""))
            if size != "-":
                result |= {"size": int(size.rstrip("KM")) * UNITS.get(size[-1], 1), "bus_gb_per_s": 0.0}
            results.append(result)
    return results


def drawn() -> dict[str, str]:
    """{name of a file in _static: its content}, of the pictures that are not plots."""
    found = {f"collectives/{operation}.svg": collectives.svg(operation) for operation in collectives.PICTURES}
    found |= {f"algorithms/{algorithm}.svg": algorithms.svg(algorithm) for algorithm in algorithms.PICTURES}
    return {**found, "paths.svg": paths.svg(), "architecture.svg": architecture.svg()}


def main() -> None:
    for name, text in drawn().items():
        path = DOCS / "_static" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for heading, name in (("2 ranks", "2"), ("4 ranks on 2 cores", "4"), ("8 ranks on 2 cores", "8")):
        document = tables(heading)
        draw(document, DOCS / "explanation" / f"{name}.png")
        if name == "2":
            wanted = [one for one in document["results"] if one["operation"] == "all_reduce"]
            document["results"] = [one for one in wanted if one["contender"] in SPEED]
            draw(
                document,
                DOCS / "_static" / "speed.svg",
                "Median time of an all_reduce between two processes of one host",
            )


if __name__ == "__main__":
    main()
