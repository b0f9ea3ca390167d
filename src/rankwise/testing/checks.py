"""Assertions that scenarios share. The suite needs no test framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def refuses(
    error: type[Exception], call: Callable[..., object], *args: Any, says: Sequence[str] = (), **keywords: Any
) -> None:
    """Assert that the call raises `error`, and that its one-line message has all the words of `says` in it."""
    try:
        result = call(*args, **keywords)
    except error as raised:
        message = str(raised)
        assert "\n" not in message, f"the message has several lines: {message!r}"
        missing = [word for word in says if word not in message]
        assert not missing, f"the message lacks {missing}: {message!r}"
        return
    raise AssertionError(f"no {error.__name__} was raised; the call returned {result!r}")
