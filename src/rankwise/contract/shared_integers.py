"""Integers that all ranks of a group change by single indivisible steps."""

from __future__ import annotations

import time
from typing import Protocol

POLL = 1e-3  # seconds between two reads of an integer whose changes nobody announces


class SharedIntegers(Protocol):
    """Integers of 64 bits, numbered from 0. What one rank has done, every rank's next step sees.

    By default nobody announces changes, as between hosts, so a sleeper wakes every POLL seconds to look.
    """

    def add(self, index: int, n: int) -> int:
        """Add n to an integer; returns its value before."""

    def swap_if(self, index: int, before: int, after: int) -> bool:
        """Give an integer the value `after` if it has the value `before`; returns whether it had."""

    def sleep_while(self, index: int, value: int, seconds: float) -> None:
        """Sleep while an integer has this value, for at most so long; it may return earlier."""
        time.sleep(min(seconds, POLL))

    def wake(self, index: int) -> None:
        """Wake all who `sleep_while` this integer has some value."""
        return  # nobody sleeps for longer than a moment
