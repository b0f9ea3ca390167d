"""Integers that all ranks of a group change by single indivisible steps."""

from __future__ import annotations

from typing import Protocol


class SharedWords(Protocol):
    """Integers of 64 bits, numbered from 0. What one rank has done, every rank's next step sees."""

    def add(self, index: int, n: int) -> int:
        """Add n to an integer; returns its value before."""

    def swap_if(self, index: int, before: int, after: int) -> bool:
        """Give an integer the value `after` if it has the value `before`; returns whether it had."""

    def sleep_while(self, index: int, value: int, seconds: float) -> None:
        """Sleep while an integer has this value, for at most so long; it may return earlier."""

    def wake(self, index: int) -> None:
        """Wake all who `sleep_while` this integer has some value."""
