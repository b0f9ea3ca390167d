"""The names of signals, as errors and reports show them."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """SIGKILL, or signal 35 for one of the unnamed real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
