"""Assertions that scenarios share. The suite needs no test framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Errors = type[Exception] | tuple[type[Exception], ...]


def refuses(error: Errors, call: Callable[..., object], *args: Any, words: Sequence[str] = (), **keywords: Any) -> None:
    """Assert that the call raises `error`. With `words`, its message must be one line that contains all these words."""
    try:
        result = call(*args, **keywords)
    except error as raised:
        message = str(raised)
        assert not words or "\n" not in message, f"the message has several lines: {message!r}"
        missing = [word for word in words if word not in message]
        assert not missing, f"the message lacks {missing}: {message!r}"
        return
    raise AssertionError(f"expected {error}, and the call returned {result!r}")
