"""Errors and results of ranks whose pickling, unpickling and text raise errors of any kind."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

KINDS = (RuntimeError, SystemExit, KeyboardInterrupt, RecursionError)


class Full(Exception):
    """Its pickling raises an error of this kind."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__("disk is full")
        self.kind = kind

    def __reduce__(self) -> str:
        raise self.kind


class Unshowable(Full):
    """So do its text and its representation."""

    def __str__(self) -> str:
        raise self.kind

    __repr__ = __str__


class Torn(Full):
    """Its unpickling in another process raises an error of this kind."""

    def __reduce__(self) -> Any:
        return _torn, (self.kind, os.getpid())


class Changed(Full):
    """It is unpickled as something that is no error."""

    def __reduce__(self) -> Any:
        return str, ("disk is full",)


def _torn(kind: type[BaseException], pid: int) -> Torn:
    if os.getpid() != pid:
        raise kind("torn")
    return Torn(kind)


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


def gives(error: type[Full], kind: type[BaseException]) -> Full:
    return error(kind)
