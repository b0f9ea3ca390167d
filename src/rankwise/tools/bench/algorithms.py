"""Each algorithm of the native engine forced, as a contender of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankwise._native import algorithms
from rankwise.tools.bench.workers import Launch

ALGORITHMS: dict[str, list[str]] = algorithms()
"""By operation."""


def launches(ours: Launch, operations: Sequence[str]) -> dict[str, Launch]:
    """How to start rankwise with each algorithm of these operations forced, by the algorithm's name."""
    names = dict.fromkeys(name for operation in operations for name in ALGORITHMS[operation])
    forced = {name: ",".join(f"{op}={name}" for op in operations if name in ALGORITHMS[op]) for name in names}
    return {
        name: replace(ours, environment={**ours.environment, "RANKWISE_ALGORITHM": choice})
        for name, choice in forced.items()
    }


def memory(name: str) -> str:
    """The memory of the arrays of the contender with this name: an algorithm for registered memory needs such."""
    return "registered" if name.startswith("registered") else "numpy"
