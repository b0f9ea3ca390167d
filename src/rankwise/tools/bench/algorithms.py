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
        columns = "".join(f"{name:>{self._width(name)}}" for name in self.names)
        return f"{'size':>6}{'as chosen':>11}{columns}   median time in us, * chosen for private arrays"

    def row(self, results: Sequence[Measurement]) -> str:
        by_name: Mapping[str, Measurement] = {result.contender: result for result in results}
        line = f"{size_name(by_name[OURS].size):>6}{number(by_name[OURS].times.median * 1e6):>11}"
        for name in self.names:
            found = by_name.get(name)
            cell = "- " if found is None else number(found.times.median * 1e6) + ("*" if found.chosen else " ")
            line += f"{cell:>{self._width(name)}}"
        return line

    @staticmethod
    def _width(name: str) -> int:
        return max(10, len(name) + 3)
