"""Signals, byte counts and durations, as errors, reports and tables show them."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """SIGKILL, or signal 35 for one of the unnamed real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def amount(count: float) -> str:
    """'0 B', '4.1 KiB', '12 GiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return _short(count, unit)
        count /= 1024
    return _short(count, "TiB")


def duration(seconds: float) -> str:
    """'3.4 us', '12 ms', '4.2 s', '12 min  5 s', '2 h  5 min'."""
    for limit, unit, scale in ((1e-3, "us", 1e6), (1.0, "ms", 1e3), (60.0, "s", 1.0)):
        if seconds < limit:
            return _short(seconds * scale, unit)
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60:2} s"
    return f"{minutes // 60} h {minutes % 60:2} min"


def _short(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 9.95 or value == int(value) else f"{value:.1f} {unit}"
