"""Assertions that scenarios share. The suite needs no test framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Errors = type[Exception] | tuple[type[Exception], ...]


def refuses(error: Errors, call: Callable[..., object], *args: Any, says: Sequence[str] = (), **keywords: Any) -> None:
    """Assert that the call raises `error`; with `says`, that its message is one line with all these words in it."""
    try:
        result = call(*args, **keywords)
    except error as raised:
        message = str(raised)
        assert not says or "\n" not in message, f"the message has several lines: {message!r}"
        missing = [word for word in says if word not in message]
        assert not missing, f"the message lacks {missing}: {message!r}"
        return
    raise AssertionError(f"expected {error}, and the call returned {result!r}")
