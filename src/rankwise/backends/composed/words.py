"""Sleeping for integers that ranks of several hosts share, whose changes nobody announces."""

from __future__ import annotations

import time

POLL = 1e-3  # seconds between two reads of an integer


class PolledWords:
    """The part of SharedWords that is the same over every engine."""

    def sleep_while(self, index: int, value: int, seconds: float) -> None:
        time.sleep(min(seconds, POLL))

    def wake(self, index: int) -> None:
        """Nobody sleeps for longer than a moment."""
