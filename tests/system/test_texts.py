"""Byte counts and durations as tables show them."""

from __future__ import annotations

import pytest

from rankwise.system.texts import amount, duration


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (4200, "4.1 KiB"), (12 << 30, "12 GiB"), (2**60, "1048576 TiB")]
)
def test_amount(count: float, text: str) -> None:
    assert amount(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.42e-6, "3.4 us"), (0.012, "12 ms"), (4.2, "4.2 s"), (725, "12 min  5 s"), (7500, "2 h  5 min")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
