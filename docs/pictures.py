"""Draws the pictures of the site that are kept in the repository: `python docs/pictures.py` writes them anew.

The plots are drawn by `rankwise bench --plot`: _static/speed.svg by

    rankwise bench all_reduce --vs openmpi,mpich,gloo --plot docs/_static/speed.svg

and explanation/2.png, 4.png and 8.png by `rankwise bench -n N --vs openmpi,mpich,gloo --plot docs/explanation/N.png`.
"""

from __future__ import annotations

from pathlib import Path

import algorithms
import architecture
import collectives
import paths

DOCS = Path(__file__).parent


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


if __name__ == "__main__":
    main()
