"""`rankwise bench --algorithms`: each algorithm of the native engine forced, as a contender of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankwise._native import algorithms
from rankwise.tools.bench.cases import size_name
from rankwise.tools.bench.report import OURS, number
from rankwise.tools.bench.timing import Measurement
from rankwise.tools.bench.workers import Launch

ALGORITHMS: dict[str, list[str]] = algorithms()
"""By operation."""


def launches(ours: Launch, operations: Sequence[str]) -> dict[str, Launch]:
    """How to start rankwise with each algorithm of these operations forced, by the algorithm's name."""
    names = dict.fromkeys(name for operation in operations for name in ALGORITHMS[operation])
    return {
        name: Launch(
            ours.name,
            ours.launcher,
            ours.python,
            {
                **ours.environment,
                "RANKWISE_ALGORITHM": ",".join(f"{op}={name}" for op in operations if name in ALGORITHMS[op]),
            },
        )
        for name in names
    }


def level(algorithm: str) -> str:
    """The level at which a contender has the arrays that the algorithm needs."""
    return "registered" if algorithm.startswith("registered") else "array"


class AlgorithmTable:
    """The table of one operation: the median time of each algorithm by size. A star marks what rankwise chooses."""

    def __init__(self, operation: str) -> None:
        self.names = ALGORITHMS[operation]

    def head(self) -> str:
        """What the figures are, and the names; a long one takes two lines, as single_copy above _split."""
        lines = ["median time in us; * marks the one chosen for private arrays"]
        tops, ends = zip(*map(self._halves, self.names), strict=True)
        lines.append(" " * 6 + f"{'chosen':>8}" + self._cells(tops))
        lines.append(f"{'size':>6}" + " " * 8 + self._cells(ends))
        return "\n".join(line.rstrip() for line in lines)

    def row(self, results: Sequence[Measurement]) -> str:
        by_name: Mapping[str, Measurement] = {result.contender: result for result in results}
        line = f"{size_name(by_name[OURS].size):>6}{number(by_name[OURS].times.median * 1e6):>8}"
        cells = []
        for name in self.names:
            found = by_name.get(name)
            cells.append("- " if found is None else number(found.times.median * 1e6) + ("*" if found.chosen else " "))
        return line + self._cells(cells)

    def _cells(self, texts: Sequence[str]) -> str:
        widths = [max(8, len(self._halves(name)[0]) + 2) for name in self.names]
        return "".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))

    @staticmethod
    def _halves(name: str) -> tuple[str, str]:
        first, _, last = name.rpartition("_")
        return (first, f"_{last}") if last in ("split", "put") else (name, "")
