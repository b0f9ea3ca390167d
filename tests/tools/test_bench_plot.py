"""`rankwise bench --plot`: a panel for each operation, and no line through a single point."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from rankwise.tools.bench.plot import Panel, _panels, draw


def result(operation: str, contender: str, size: int | None, ranks: int = 2, **more: Any) -> dict[str, Any]:
    sized = {} if size is None else {"size": size, "bus_gb_per_s": 1.0}
    return {"operation": operation, "contender": contender, "ranks": ranks, "median_us": 2.0, **sized, **more}


RESULTS = [
    *(result("all_reduce", name, size) for name in ("rankwise", "mpich") for size in (8, 1 << 20)),
    *(result("broadcast", name, 4096) for name in ("rankwise", "mpich")),
    *(result("barrier", "rankwise", None, ranks) for ranks in (2, 4)),
    result("scan", "rankwise", 8, chosen=True),
]


def test_panels() -> None:
    assert _panels(RESULTS) == [
        Panel("all_reduce, 2 ranks", "size", RESULTS[:4]),
        Panel("broadcast, 2 ranks, 4 KiB", None, RESULTS[4:6]),
        Panel("barrier", "ranks", RESULTS[6:8]),
        Panel("scan, 2 ranks, 8 B", None, RESULTS[8:]),
    ]


@pytest.mark.parametrize("count", [1, 4, 9])
def test_pictures_are_as_wide_as_a_page(count: int, tmp_path: Path) -> None:
    document = {"machine": {"cpu": "some", "cores": 2}, "rankwise": "0", "results": RESULTS[:count]}
    draw(document, tmp_path / "p.png")
    width, height = struct.unpack(">II", (tmp_path / "p.png").read_bytes()[16:24])
    assert 600 <= width <= 1000
    assert height <= 1000
    draw(document, tmp_path / "p.svg")
    assert "<svg" in (tmp_path / "p.svg").read_text()
