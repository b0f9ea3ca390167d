"""Whether `rankwise.trace.measure` is measuring this process; communicators written in Python ask here."""

from __future__ import annotations

import threading

measurements = 0
"""How many measurements are in progress. While there are none, communicators count nothing."""

_lock = threading.Lock()


def change(by: int) -> None:
    """Begin (1) or end (-1) a measurement."""
    global measurements
    with _lock:
        measurements += by
