"""Errors for names that other libraries use: each says what rankwise calls the same thing."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

A = TypeVar("A")


class Guess:
    """A name that a class does not have. Using it raises an AttributeError that says which name to use.

    It is a descriptor, because before Python 3.12 a class with __getattr__ finds its own attributes more slowly: a
    barrier of two ranks would take 333 ns instead of 242. Guessed hides it.
    """

    def __init__(self, name: str, advice: str, owner: str = "Group") -> None:
        self._name, self._advice, self._owner = name, advice, owner

    def __get__(self, owner: Any, kind: type) -> NoReturn:
        raise AttributeError(f"{self._owner!r} object has no attribute {self._name!r}: {self._advice}", name=self._name)


def by_name(names: dict[A, str]) -> dict[str, A]:
    """The advice for each name. names: for each advice its names, separated by spaces."""
    return {name: advice for advice, text in names.items() for name in text.split()}


WORK: dict[str, str] = by_name(
    {
        "use done()": "test Test is_completed",
        "use wait(), which raises the operation's error": "is_success",
        "use wait()": "Wait block_current_stream",
        "use `await work`, add_done_callback(function), or rw.wait_any(works)": "get_future",
        "use cancel() for a send or receive; a collective cannot be cancelled": "Cancel",
    }
)
"""What a Work has instead of these names."""
