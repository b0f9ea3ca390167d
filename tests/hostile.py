"""Errors and results of ranks whose pickling, and whose text, raise errors of any kind."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = (RuntimeError, SystemExit, KeyboardInterrupt, RecursionError)


class Full(Exception):
    """Its pickling raises an error of this kind."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__("disk is full")
        self.kind = kind

    def __reduce__(self) -> str:
        raise self.kind


class Unshowable(Full):
    """So does its text."""

    def __str__(self) -> str:
        raise self.kind


@dataclass(frozen=True)
class Frozen(Exception):
    """None of its attributes can be set."""

    text: str

    def __reduce__(self) -> tuple[type[Frozen], tuple[str]]:
        return Frozen, (self.text,)


def fails(error: type[Full], kind: type[BaseException]) -> None:
    raise error(kind)


def fails_frozen() -> None:
    raise Frozen("disk is full")


def gives(kind: type[BaseException]) -> Full:
    return Full(kind)
